from __future__ import annotations

import argparse
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db.models.functions import Now

from django_dhara import tokens
from django_dhara.management import flags
from django_dhara.models import Token
from django_dhara.payload import plain

#: Tokens that are listed, the newest first.
_MOST = 1000


class Command(flags.Command):
    help = "Create, list and revoke bearer tokens of the HTTP API. A new token is printed once; only its hash is kept."

    def add_arguments(self, parser: CommandParser) -> None:
        flags.one_line_errors(parser)
        verbs = parser.add_subparsers(dest="verb", required=True, metavar="create|list|revoke")
        create = verbs.add_parser("create", help="Print a new token.")
        flags.one_line_errors(create)
        create.add_argument("name", type=flags.name, help="Whose it is, or what for.")
        create.add_argument(
            "--scopes",
            type=_scopes,
            default=("read",),
            metavar="NAMES",
            help="Comma-separated: read, enqueue, operate. Default: read.",
        )
        create.add_argument(
            "--queues",
            type=flags.names,
            default=(),
            metavar="NAMES",
            help="Only for these queues; all without it.",
        )
        create.add_argument(
            "--days",
            type=_days,
            metavar="DAYS",
            help="Valid for so many days; for ever without it.",
        )
        listing = verbs.add_parser("list", help="Show all tokens, never the secret.")
        flags.one_line_errors(listing)
        revoke = verbs.add_parser("revoke", help="Make a token useless at once.")
        flags.one_line_errors(revoke)
        revoke.add_argument("id", type=flags.count, help="Its id, as `list` shows it.")

    def handle(self, *args: Any, verb: str, **given: Any) -> None:
        {"create": self._create, "list": self._list, "revoke": self._revoke}[verb](given)

    def _create(self, given: dict[str, Any]) -> None:
        days = given["days"]
        expires_at: Any = None if days is None else Now() + timedelta(days=days)
        try:
            row, secret = tokens.create(
                given["name"], given["scopes"], queues=given["queues"], expires_at=expires_at, created_by="dhara_token"
            )
        except ValueError as error:
            raise CommandError(str(error), returncode=2) from None
        self.stderr.write(f"Token {row.pk}. It is shown this once:")
        self.stdout.write(secret)

    def _list(self, given: dict[str, Any]) -> None:
        rows = Token.objects.using(tokens.alias()).order_by("-pk").annotate(now=Now())[:_MOST]
        for row in rows:
            queues = ",".join(row.queues) or "all queues"
            used = f"{row.used_at:%Y-%m-%d %H:%M}" if row.used_at else "never"
            words = [str(row.pk), f"{row.hint}...", _standing(row), ",".join(row.scopes), queues, f"used {used}"]
            self.stdout.write("  ".join([*words, plain(row.name)]))

    def _revoke(self, given: dict[str, Any]) -> None:
        if not tokens.revoke(given["id"]):
            raise CommandError(f"There is no token {given['id']} that could be revoked.")
        self.stdout.write(f"Token {given['id']} is revoked.")


def _standing(row: Any) -> str:
    if row.revoked_at:
        return "revoked"
    return "expired" if row.expires_at and row.expires_at <= row.now else "valid"


def _days(raw: str) -> float:
    days = flags.span("days", 36_500)(raw)
    if not days:
        raise argparse.ArgumentTypeError("must be more than 0 days: such a token would be of no use to anybody")
    return days


def _scopes(raw: str) -> tuple[str, ...]:
    found = flags.names(raw)
    if not set(found) <= set(tokens.SCOPES):
        raise argparse.ArgumentTypeError(f"must be of {', '.join(tokens.SCOPES)}, not {raw!r}")
    return found
