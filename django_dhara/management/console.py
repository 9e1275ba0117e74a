"""What a worker says in a terminal, where the project has not said where its log goes."""

from __future__ import annotations

import logging


def log_here() -> None:
    """Print what `django_dhara` logs at INFO and above to stderr, unless somebody handles it already.

    Without that, Python shows warnings only: no word of a drain, of a failed attempt or of a retry.
    """
    logger = logging.getLogger("django_dhara")
    if logger.hasHandlers():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
