"""Arguments as people may see them: through the project's own hook, `DHARA["REDACT"]`.

Whatever shows arguments asks here: the admin, and what else comes to show them. It fails closed. A hook that cannot be
imported, that raises, or that answers something else than arguments hides them, and the log says why; so does a mistake
in `DHARA` that may have been meant to name a hook.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from django.utils.module_loading import import_string

from django_dhara import events, project


class Shown(NamedTuple):
    """Arguments that may be shown."""

    #: JSON text; empty where they are hidden.
    text: str
    #: The hook was asked; what is shown may differ from what the function gets.
    is_redacted: bool = False
    #: Nothing may be shown: the hook does not work.
    is_hidden: bool = False


def is_redacting() -> bool:
    """Is there a hook, or a mistake in `DHARA` where one may have been meant?

    A search by what is in the arguments must be refused then: its answers would tell what the hook hides.
    """
    return bool(project.usable().redact) or _is_misspelt()


def shown(function: str, text: str) -> Shown:
    """The arguments of a task as people may see them.

    Args:
        function: the dotted path of its function.
        text: the whole payload as JSON text; a beginning of it can only be shown while nothing is redacted.
    """
    if not is_redacting():
        return Shown(text)
    try:
        return Shown(json.dumps(_redacted(function, text), ensure_ascii=False), is_redacted=True)
    except Exception:  # noqa: BLE001 - the hook is somebody's code
        events.ARGUMENTS_HIDDEN.murmur(function, function=function, exc_info=True)
        return Shown("", is_redacted=True, is_hidden=True)


def _redacted(function: str, text: str) -> Any:
    answer = _hook()(function, json.loads(text))
    if not isinstance(answer, dict):
        raise TypeError(f"redact() returned {type(answer).__name__} and no dict of arguments")
    return answer


def _hook() -> Callable[[str, Any], Any]:
    path = project.usable().redact
    if not path or _is_misspelt():
        raise ValueError("DHARA has mistakes; `manage.py check` lists them")
    hook: Callable[[str, Any], Any] = import_string(path)
    return hook


def _is_misspelt() -> bool:
    """A key that does not exist, or a value that is no path: what was meant cannot be known."""
    return any(problem.kind != "value" or problem.option == "REDACT" for problem in project.problems())
