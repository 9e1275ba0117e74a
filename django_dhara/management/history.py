"""The migrations that a database has, beside those that the code has: what was renamed, deleted or changed since.

Django remembers names only. The table of `AppliedMigration` keeps a digest of each applied migration beside its name,
in the same database: from when `dhara_migrate` applied it, or first met it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from importlib.abc import InspectLoader
from importlib.util import find_spec
from typing import Any, NamedTuple

from django.apps import apps
from django.core.management.base import CommandError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.db.models.functions import Now

from django_dhara.management import digest
from django_dhara.models import AppliedMigration


class Name(NamedTuple):
    """Of a migration, as Django prints it: `shop.0001_initial`."""

    app: str
    name: str

    def __str__(self) -> str:
        return f"{self.app}.{self.name}"


class History:
    """What was applied to the database of `connection`, and whether the code still has it."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self._connection = connection
        loader = MigrationLoader(None, load=False)
        loader.load_disk()
        files: dict[tuple[str, str], Any] = loader.disk_migrations
        rows = MigrationRecorder(connection).applied_migrations()
        #: By the order in which they were applied.
        self.applied = {Name(*key): rows[key].pk for key in sorted(rows, key=lambda key: rows[key].pk)}
        self.files = {Name(*key) for key in files}
        self._squashed = {Name(*key) for migration in files.values() for key in migration.replaces}
        self.has_table = AppliedMigration._meta.db_table in connection.introspection.table_names()  # noqa: SLF001
        kept = AppliedMigration.objects.using(connection.alias) if self.has_table else ()
        self._kept = {Name(row.app, row.name): row for row in kept}
        self._digests: dict[Name, str] = {}

    @property
    def changed(self) -> list[Name]:
        """Applied, and another one now: its digest is not the one that was kept."""
        return sorted(name for name in self.applied.keys() & self.files & self._kept.keys() if self._is_changed(name))

    def _is_changed(self, name: Name) -> bool:
        kept, now = self._kept[name].digest, self._digest_of(name)
        return bool(now) and digest.is_comparable(kept) and kept != now

    def _digest_of(self, name: Name) -> str:
        if name not in self._digests:
            self._digests[name] = _read(name)
        return self._digests[name]

    @property
    def missing(self) -> list[Name]:
        """Applied, and without a file, although its app is in the project and no other migration replaces it."""
        known = self.files | self._squashed | {name for name, row in self._kept.items() if row.file_may_go}
        return sorted(name for name in self.applied.keys() - known if _has_migrations(name.app))

    @property
    def newer(self) -> list[Name]:
        """Those of the missing ones that were applied after all that the code has: by newer code, as it seems.

        Or the newest ones were deleted; nothing tells these cases apart.
        """
        last = max((place for name, place in self.applied.items() if name in self.files), default=0)
        return [name for name in self.missing if self.applied[name] > last]

    def new_name(self, missing: Name) -> Name | None:
        """The migration that is not applied and does the same as a missing one did."""
        kept = self._kept[missing].digest if missing in self._kept else ""
        news = sorted(name for name in self.files - self.applied.keys() if name.app == missing.app)
        return next((name for name in news if kept and self._digest_of(name) == kept), None)

    def troubles(self, accepted: Collection[Name] = ()) -> list[str]:
        """Everything for which nothing may be applied, in words; without what a person has accepted."""
        lines = [f"{name} was changed since it was applied" for name in self.changed if name not in accepted]
        for name in self.missing:
            if name not in accepted:
                new = self.new_name(name)
                lines.append(f"{name} was applied and is now " + (f"called {new.name}" if new else "gone"))
        return lines

    def keep(self, accepted: Collection[Name] = ()) -> None:
        """Write down what is new, and what a person has accepted; forget what was unapplied."""
        if not self.has_table:
            return
        rows = AppliedMigration.objects.using(self._connection.alias)
        rows.bulk_create(
            list(self._news(accepted)),
            update_conflicts=True,
            unique_fields=("app", "name"),
            update_fields=("digest", "file_may_go", "accepted_at"),
        )
        rows.filter(pk__in=[row.pk for name, row in self._kept.items() if name not in self.applied]).delete()

    def _news(self, accepted: Iterable[Name]) -> Iterator[AppliedMigration]:
        """Rows to write, where they say something else than those that are there."""
        accepted = (set(self.changed) | set(self.missing)) & set(accepted)
        for name in sorted(self.applied):
            kept, is_gone, is_accepted = self._kept.get(name), name not in self.files, name in accepted
            row = AppliedMigration(app=name.app, name=name.name, digest=kept.digest if kept else "")
            if not is_gone and (is_accepted or not digest.is_comparable(row.digest)):
                row.digest = self._digest_of(name)
            may_go = is_accepted or (kept is not None and kept.file_may_go)
            row.file_may_go = name in self._squashed or (is_gone and may_go)
            row.accepted_at = Now() if is_accepted else kept.accepted_at if kept else None
            # Without its file, and without a word on that, there is nothing to say of it.
            if (row.digest or row.file_may_go) and (kept is None or _said(kept) != _said(row)):
                yield row


def _said(row: AppliedMigration) -> tuple[object, ...]:
    return row.digest, row.file_may_go, row.accepted_at


def unapplied(connection: BaseDatabaseWrapper, app: str | None = None) -> list[Name]:
    """Migrations that the code has and the database has not, in the order in which they would be applied.

    Raises:
        CommandError: there is no such app, or an app has two newest ones, and nothing says which comes first.
    """
    executor = MigrationExecutor(connection)
    if app is not None and app not in executor.loader.migrated_apps:
        raise CommandError(f"there is no app {app!r} that has migrations.")
    for label, names in executor.loader.detect_conflicts().items():
        raise CommandError(f"{label} has several newest migrations, {', '.join(names)}: run makemigrations --merge.")
    targets = executor.loader.graph.leaf_nodes(app)
    return [Name(migration.app_label, migration.name) for migration, _ in executor.migration_plan(targets)]


def _has_migrations(app: str) -> bool:
    """Is the app in the project, and are its migrations not switched off (`MIGRATION_MODULES = {app: None}`)?"""
    labels = {config.label for config in apps.get_app_configs()}
    return app in labels and MigrationLoader.migrations_module(app)[0] is not None


def _read(name: Name) -> str:
    """The digest of a migration's file; empty where there is no source, only bytecode."""
    module, _ = MigrationLoader.migrations_module(name.app)
    spec = find_spec(f"{module}.{name.name}")
    source = spec.loader.get_source(spec.name) if spec and isinstance(spec.loader, InspectLoader) else None
    return digest.digest(source) if source is not None else ""
