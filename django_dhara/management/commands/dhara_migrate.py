from __future__ import annotations

import argparse
from typing import Any

from django.core.management import call_command, get_commands, load_command_class
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations import exceptions

from django_dhara.management import flags
from django_dhara.management.alone import Lock, alone, direct
from django_dhara.management.history import History, Name, unapplied

#: What Django says of files that do not fit together; a sentence each.
_UNFIT = (
    exceptions.BadMigrationError,
    exceptions.CircularDependencyError,
    exceptions.InconsistentMigrationHistory,
    exceptions.InvalidMigrationPlan,
    exceptions.NodeNotFoundError,
)


class Command(flags.Command):
    help = (
        "Run `migrate`, one process at a time: another one waits, and then finds nothing to do. Refuses, with the "
        "names, when an applied migration was renamed, deleted or changed since. Exit code: 0 when all is well, 3 when "
        "another process was still at work after --wait, 1 otherwise."
    )
    # By `migrate` itself, which also asks the database.
    requires_system_checks = ()
    tells_outages = False

    def add_arguments(self, parser: CommandParser) -> None:
        flags.one_line_errors(parser)
        parser.add_argument("app_label", nargs="?", help="Only this app and what it depends on.")
        parser.add_argument(
            "migration_name", nargs="?", help="Up or down to this migration; `zero`: to before the first."
        )
        flags.add(
            parser, "--database", "DHARA_MIGRATE_DATABASE", "Alias in DATABASES.",
            read=_alias, default="default", metavar="ALIAS",
        )  # fmt: skip
        flags.add(
            parser, "--dsn", "DHARA_MIGRATE_DSN",
            "Connect here and not where DATABASES says: past a pooler. What it leaves out is as in DATABASES.",
            default="",
        )  # fmt: skip
        flags.add(
            parser, "--wait", "DHARA_MIGRATE_WAIT", "For another process to finish. Default: 300.",
            read=flags.span("seconds", 86_400), default=300.0, metavar="SECONDS",
        )  # fmt: skip
        flags.add_switch(
            parser, "--check", "DHARA_MIGRATE_CHECK",
            "Run nothing. Exit code: 0 when all is applied and nothing was renamed, deleted or changed.",
        )  # fmt: skip
        parser.add_argument(
            "--accept", action="append", type=_migration, default=[], metavar="APP.NAME",
            help="This migration was changed or deleted, and that is fine. May be given again for others.",
        )  # fmt: skip
        flags.add_switch(
            parser, "--allow-newer", "DHARA_MIGRATE_ALLOW_NEWER",
            "Let it pass that migrations are gone which were applied after all that the code has, if it has nothing to "
            "apply: this is the code before a deploy, or after its rollback.",
        )  # fmt: skip
        _add_those_of_migrate(parser)

    def handle(self, *args: Any, **given: Any) -> None:
        connection = _connection(given["database"])
        _see_that_they_agree(given)
        try:
            with direct(connection, given["dsn"]):
                self._act(connection, given)
        except _UNFIT as error:
            raise CommandError(" ".join(str(error).split())) from error

    def _act(self, connection: BaseDatabaseWrapper, given: dict[str, Any]) -> None:
        if given["check"]:
            self._check(connection, given)
        elif given["plan"]:
            history = History(connection)
            _refuse(history.troubles(self._tolerated(connection, history, given)), _ADVICE)
            _migrate(given)
        else:
            with alone(connection, given["wait"], self._tell) as lock:
                self._run(connection, lock, given)

    def _check(self, connection: BaseDatabaseWrapper, given: dict[str, Any]) -> None:
        history = History(connection)
        troubles = history.troubles(self._tolerated(connection, history, given))
        # The names first: without a file of the past Django may not be able to tell what is to come.
        news = [] if history.missing else unapplied(connection, given["app_label"])
        _refuse([f"{name} is not applied" for name in news] + troubles)
        self.stdout.write("All migrations are applied, and as they were.")

    def _run(self, connection: BaseDatabaseWrapper, lock: Lock, given: dict[str, Any]) -> None:
        history = History(connection)
        self._look_at_accepted(history, given["accept"])
        _refuse(history.troubles(self._tolerated(connection, history, given)), _ADVICE)
        history.keep(given["accept"])
        try:
            _migrate(given, lock)
            lock.must_be_held()
        except CommandError:
            raise
        except Exception as error:
            lock.must_be_held(error)
            raise
        finally:
            if lock.is_held():
                history = History(connection)
                history.keep(given["accept"])
        if not history.has_table:
            self.stderr.write(_NO_TABLE.format(alias=connection.alias))

    def _tolerated(self, connection: BaseDatabaseWrapper, history: History, given: dict[str, Any]) -> list[Name]:
        """What may differ: what a person has accepted, and what newer code has applied."""
        newer = history.newer if given["allow_newer"] else []
        if newer and not unapplied(connection):
            self._tell(f"Applied by newer code than this: {', '.join(map(str, newer))}.")
            return [*given["accept"], *newer]
        return list(given["accept"])

    def _look_at_accepted(self, history: History, accepted: list[Name]) -> None:
        for name in accepted:
            if name not in history.applied:
                raise CommandError(f"--accept {name}: no such migration is applied.")
            if name not in history.changed + history.missing:
                self._tell(f"--accept {name}: nothing to accept, it is as it was.")

    def _tell(self, sentence: str) -> None:
        self.stdout.write(sentence)
        self.stdout.flush()


def _add_those_of_migrate(parser: CommandParser) -> None:
    """Django's own, handed on as they are. Not --prune, which deletes what is compared here."""
    parser.add_argument("--plan", action="store_true", help="Show what would be done, and do nothing.")
    parser.add_argument("--fake", action="store_true", help="Mark migrations as applied without running them.")
    parser.add_argument(
        "--fake-initial", action="store_true", help="Mark initial migrations as applied where their tables exist."
    )
    parser.add_argument("--run-syncdb", action="store_true", help="Make tables for apps without migrations, too.")
    parser.add_argument(
        "--noinput", "--no-input", action="store_false", dest="interactive", help="Ask nothing, answer for yourself."
    )


def _migrate(given: dict[str, Any], lock: Lock | None = None) -> None:
    """Run the project's `migrate`, which is Django's unless an app has one of its own."""
    found = get_commands()["migrate"]
    migrate = found if isinstance(found, BaseCommand) else load_command_class(found, "migrate")
    if lock is not None:
        _guard(migrate, lock)
    handed_on = (
        "database", "plan", "fake", "fake_initial", "run_syncdb", "interactive", "verbosity", "no_color", "force_color",
    )  # fmt: skip
    labels = [given[name] for name in ("app_label", "migration_name") if given[name]]
    # The streams are those of a caller in Python; on the command line there are none.
    options = {name: given[name] for name in handed_on} | {name: given.get(name) for name in ("stdout", "stderr")}
    call_command(migrate, *labels, skip_checks=False, **options)


def _guard(migrate: Any, lock: Lock) -> None:
    """Have the lock looked at before each migration."""
    progress: Any = getattr(migrate, "migration_progress_callback", None)

    def guarded(action: str, *args: Any, **named: Any) -> None:
        if action in ("apply_start", "unapply_start"):
            lock.must_be_held()
        progress(action, *args, **named)

    if progress is not None:
        migrate.migration_progress_callback = guarded


def _connection(alias: str) -> BaseDatabaseWrapper:
    connection = connections[alias]
    if connection.vendor != "postgresql":
        raise CommandError(f"DATABASES[{alias!r}] is not PostgreSQL: use `migrate --database {alias}`.")
    if connection.in_atomic_block:
        raise CommandError("dhara_migrate cannot run inside a transaction, such as a TestCase's.")
    return connection


def _see_that_they_agree(given: dict[str, Any]) -> None:
    if given["check"]:
        # `--check` in the environment of a probe is not meant for a person's other flags.
        others = [name for name in ("accept", "plan", "fake", "fake_initial", "migration_name") if given[name]]
        for name in others:
            raise CommandError(f"--check changes nothing, and looks at whole apps: it does not go with {name}.")


_NO_TABLE = (
    "DATABASES[{alias!r}] has no table dhara_migration: it will not be noticed when migrations are changed. The "
    "migrations of the app dhara make it."
)
_ADVICE = " Nothing was done. Put the files back; or, where that is as it should be, say so by --accept APP.NAME."


def _refuse(troubles: list[str], advice: str = "") -> None:
    if troubles:
        raise CommandError(f"{'; '.join(troubles)}.{advice}")


def _alias(raw: str) -> str:
    if raw not in connections:
        known = ", ".join(map(repr, connections))
        raise argparse.ArgumentTypeError(f"{raw!r} is not in DATABASES, which has {known}")
    return raw


def _migration(raw: str) -> Name:
    app, dot, name = raw.partition(".")
    if not (app and dot and name):
        raise argparse.ArgumentTypeError(f"must be APP.NAME, such as shop.0001_initial, not {raw!r}")
    return Name(app, name)
