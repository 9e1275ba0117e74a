"""Bearer tokens of the HTTP API: made, found and revoked. Only the SHA-256 of one is kept.

A token is 256 random bits, so its hash needs no salt and no slow function: nobody finds it by trying. It is looked up
by its hash, which an index does; no text is compared, so the time that takes tells nothing about a token.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from hmac import compare_digest
from secrets import token_urlsafe

from django.db.models import Q, Value
from django.db.models.functions import Now
from django.http import HttpRequest
from django.views.decorators.debug import sensitive_variables

from django_dhara import databases
from django_dhara.backend import check_queue
from django_dhara.models import Token
from django_dhara.payload import check_text

#: What a token may be allowed: see tasks, queues, workers and counts; enqueue; cancel, retry, pause, resume.
SCOPES = ("read", "enqueue", "operate")
#: How a token begins, so that scanners for leaked secrets know it.
PREFIX = "dht_"
_FORM = re.compile(r"dht_[A-Za-z0-9_-]{43}")
#: Characters of a token that are kept and shown, so that people can tell it from others; 238 bits are left.
_HINT = len(PREFIX) + 3
#: `used_at` is written at most so often.
_USE_NOTED = timedelta(minutes=1)
MAX_NAME_LENGTH = 100


def alias() -> str:
    """The database that holds the tokens: the first one that holds a queue."""
    return databases.aliases()[0]


@sensitive_variables("secret")
def create(
    name: str,
    scopes: Sequence[str],
    *,
    queues: Sequence[str] = (),
    expires_at: datetime | None = None,
    created_by: str = "",
) -> tuple[Token, str]:
    """Make a token.

    Args:
        name: whose it is, or what for.
        queues: the only ones that it is good for; empty: all.

    Returns:
        Its row, and the token itself, which nobody can read again.

    Raises:
        ValueError: a name, a scope or a queue that cannot be.
    """
    check_text(name, "name", max_length=MAX_NAME_LENGTH)
    if not scopes or not set(scopes) <= set(SCOPES):
        raise ValueError(f"scopes must be one or more of {', '.join(SCOPES)}.")
    for queue in queues:
        check_queue(queue, "queue")
    secret = PREFIX + token_urlsafe(32)
    row = Token.objects.using(alias()).create(
        name=name,
        hint=secret[:_HINT],
        digest=Secret(secret).digest(),
        scopes=[scope for scope in SCOPES if scope in scopes],
        queues=sorted(set(queues)),
        expires_at=expires_at,
        created_by=created_by,
    )
    return row, secret


class Secret:
    """What a caller has shown. It prints as nothing: the variables of a traceback, which Django mails to the admins and
    Sentry sends away, hold this and not its text.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return "Secret()"

    @property
    def is_token(self) -> bool:
        """Has it the form of one?"""
        return _FORM.fullmatch(self._text) is not None

    def digest(self) -> bytes:
        return sha256(self._text.encode()).digest()

    def equals(self, other: str) -> bool:
        """Is it this text, which is not empty? That takes equally long for all texts."""
        return bool(other) and compare_digest(self._text.encode(), other.encode())


def shown(request: HttpRequest) -> Secret | None:
    """What a request has in `Authorization: Bearer …`; None: it has no such header."""
    kind, _, text = request.headers.get("Authorization", "").partition(" ")
    return Secret(text.strip()) if kind.lower() == "bearer" else None


def find(secret: Secret) -> Token | None:
    """The token that is valid now, by the database's clock; None: there is none, it has expired, or was revoked."""
    if not secret.is_token:
        return None
    rows = Token.objects.using(alias()).filter(digest=secret.digest(), revoked_at__isnull=True)
    row = rows.filter(Q(expires_at__isnull=True) | Q(expires_at__gt=Now())).annotate(now=Now()).first()
    if row is not None and (row.used_at is None or row.now - row.used_at > _USE_NOTED):
        _note_use(row)
    return row


def _note_use(row: Token) -> None:
    """Of many requests at once one writes, since the others find its time when they get the lock."""
    is_due = Q(used_at__isnull=True) | Q(used_at__lt=Now() - Value(_USE_NOTED))
    Token.objects.using(alias()).filter(is_due, pk=row.pk).update(used_at=Now())


def revoke(pk: int) -> bool:
    """Make a token useless from its next request on. False: there is none, or it was revoked before."""
    rows = Token.objects.using(alias()).filter(pk=pk, revoked_at__isnull=True)
    return bool(rows.update(revoked_at=Now()))
