"""System checks: mistakes in the settings are Errors, what may be intended is a Warning.

Three entrances, so that nothing is said twice: `check_backend` speaks of one alias in TASKS and is called through
`DharaBackend.check()` by the check that comes with Django's tasks; `check_project` speaks of what all aliases share;
`check_databases` asks the servers, under `manage.py check --database ALIAS` and before `migrate`. Each id has a section
in docs/reference/checks.md. No model is imported before the app is known to be installed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import django
from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import connections, router
from django.utils.module_loading import import_string
from psycopg import IsolationLevel

from django_dhara import conf, project

if TYPE_CHECKING:
    from django_dhara.backend import DharaBackend

#: The oldest PostgreSQL that Django 6.1 takes, and the oldest that the tests run on.
MIN_POSTGRESQL = 15
#: What psycopg_pool makes of `"pool": True`: its default min_size, which is also its default max_size.
DEFAULT_POOL_SIZE = 4

_PROBLEM_IDS = {"shape": "dhara.E004", "unknown": "dhara.E003", "value": "dhara.E004", "conflict": "dhara.E005"}
_OPTIONS_PAGE = "The options, their units and their limits are listed in docs/reference/settings.md."
#: Settings of `DHARA` that name a function of the project.
_PATHS = ("redact",)


def install() -> None:
    """Register the checks, Django's own too: in a project without the admin nothing else may import it (at ready)."""
    register(check_project)
    register(check_databases, Tags.database)
    if _has_tasks_api():
        import_module("django.tasks.checks" if django.VERSION >= (6, 0) else "django_tasks.checks")


def check_backend(backend: DharaBackend) -> Iterator[CheckMessage]:
    """What is wrong with one alias in TASKS."""
    if _asked_by_the_backport(backend):
        return
    yield from _check_keys(backend)
    yield from _check_queues(backend)
    for problem in conf.problems(backend.alias, backend.options):
        yield Error(
            f"{problem.where} {problem.message}", hint=_option_hint(problem), id=_PROBLEM_IDS[problem.kind], obj=None
        )
    if apps.is_installed("django_dhara"):
        yield from _check_database(backend, conf.usable(backend.alias, backend.options).database)
    else:
        yield Error(
            f"TASKS[{backend.alias!r}]['BACKEND'] needs the app 'django_dhara', which is not in INSTALLED_APPS.",
            hint="Add 'django_dhara' to INSTALLED_APPS and run `manage.py migrate`.",
            id="dhara.E001",
        )


def _check_keys(backend: DharaBackend) -> Iterator[CheckMessage]:
    for key in backend.params:
        if key not in ("BACKEND", "QUEUES", "OPTIONS"):
            hint = "BACKEND, QUEUES and OPTIONS are what Django reads; options of django_dhara belong into OPTIONS."
            if key == "ENQUEUE_ON_COMMIT":
                hint = "Remove it: a task is a row of the caller's transaction, and commits with it."
            yield Warning(f"TASKS[{backend.alias!r}][{key!r}] is ignored.", hint=hint, id="dhara.W002")


def _check_queues(backend: DharaBackend) -> Iterator[CheckMessage]:
    where = f"TASKS[{backend.alias!r}]['QUEUES']"
    queues = backend.params.get("QUEUES", [])
    hint = "A list of names such as ['default', 'email']; [] allows every name."
    if not isinstance(queues, (list, tuple, set, frozenset)):
        message = f"{where} must be a list of strings, not {type(queues).__name__}."
        yield Error(message, hint=hint, id="dhara.E006")
        return
    for name in queues:
        reason = _unfit_queue(name)
        if reason:
            yield Error(f"{where}: {reason}.", hint=hint, id="dhara.E006")


def _unfit_queue(name: object) -> str:
    from django_dhara.backend import check_queue

    try:
        check_queue(name, "a queue name")
    except ValueError as error:
        return str(error)
    return ""


def _option_hint(problem: conf.Problem) -> str:
    if problem.kind == "unknown":
        close = get_close_matches(problem.option.upper(), [name.upper() for name in conf.OPTIONS], 1)
        return f"Did you mean {close[0]!r}?" if close else _OPTIONS_PAGE
    if problem.option.endswith("_seconds"):
        return f"A number of seconds. {_OPTIONS_PAGE}"
    return _OPTIONS_PAGE


def _check_database(backend: DharaBackend, database: str) -> Iterator[CheckMessage]:
    where = f"TASKS[{backend.alias!r}]['OPTIONS']['DATABASE']"
    if database not in connections:
        close = get_close_matches(database, list(connections), 1)
        known = ", ".join(repr(alias) for alias in connections)
        hint = f"Did you mean {close[0]!r}?" if close else f"DATABASES has {known}."
        yield Error(f"{where} is {database!r}, which is not in DATABASES.", hint=hint, id="dhara.E007")
    elif connections[database].vendor != "postgresql":
        engine = connections[database].settings_dict["ENGINE"]
        yield Error(
            f"DATABASES[{database!r}]['ENGINE'] is {engine!r}; the queue of TASKS[{backend.alias!r}] needs PostgreSQL.",
            hint=f"Point {where} to an alias with the engine 'django.db.backends.postgresql'.",
            id="dhara.E008",
        )
    else:
        yield from _check_routers(where, database)
        yield from _check_isolation(backend.alias, database)


def _check_routers(where: str, database: str) -> Iterator[CheckMessage]:
    from django_dhara.models import Task

    chosen = router.db_for_write(Task)
    if chosen != database:
        yield Warning(
            f"{where} is {database!r}, but the database routers send the app 'dhara' to {chosen!r}.",
            hint=f"Enqueueing and workers use {database!r} whatever a router says; let db_for_read and db_for_write "
            f"answer it for the app label 'dhara' too, which is what the admin and your own queries go by.",
            id="dhara.W008",
        )
    if not router.allow_migrate_model(database, Task):
        yield Warning(
            f"{where} is {database!r}, but a database router keeps `migrate` from making the tables there.",
            hint="Let allow_migrate answer True or None for this database and the app label 'dhara'.",
            id="dhara.W009",
        )


def _check_isolation(alias: str, database: str) -> Iterator[CheckMessage]:
    level = connections[database].settings_dict["OPTIONS"].get("isolation_level")
    # Another value than a member of the enumeration is refused by Django, at the first connection.
    if isinstance(level, int) and level > IsolationLevel.READ_COMMITTED:
        yield from _atomic_functions(alias, f"DATABASES[{database!r}]['OPTIONS']['isolation_level']")


def _atomic_functions(alias: str, where: str) -> Iterator[CheckMessage]:
    from django_dhara import registry

    tasks = [task for task in map(registry.resolve, registry.paths()) if getattr(task, "atomic", False)]
    paths = [task.module_path for task in tasks if task.backend == alias]
    if paths:
        yield Error(
            f"{where} is above READ COMMITTED, and atomic=True cannot work there: {', '.join(paths)}.",
            hint="A run's row is renewed while the function runs, so its transaction could not be settled. Use "
            "another alias for the data that needs this level, or remove atomic=True.",
            id="dhara.E009",
        )


def check_project(app_configs: object = None, **kwargs: object) -> Iterator[CheckMessage]:
    """What is wrong with the settings that all aliases in TASKS share."""
    yield from _check_dhara()
    if not _has_tasks_api():
        yield Error(
            f"Django {django.get_version()} has no django.tasks, and the backport is not installed.",
            hint="Run `pip install 'django-dhara[django52]'`.",
            id="dhara.E002",
        )
        return
    yield from _check_backport()
    lazy_settings: Any = settings
    if not lazy_settings.is_overridden("TASKS"):
        yield Warning(
            "TASKS is not set: tasks run at once, inside `enqueue()`, and not in a worker.",
            hint='TASKS = {"default": {"BACKEND": "django_dhara.backend.DharaBackend", "QUEUES": []}}',
            id="dhara.W001",
        )
    if backends := list(_backends()):
        yield from _check_environment()
        yield from _check_time_zone()
        for database, concurrency in _queue_databases(backends).items():
            yield from _check_connections(database, concurrency)


def _check_dhara() -> Iterator[CheckMessage]:
    """`DHARA`: its keys, its values, and that the functions it names can be imported."""
    for problem in project.problems():
        close = get_close_matches(problem.option.upper(), [key.upper() for key in project.KEYS], 1)
        hint = f"Did you mean {close[0]!r}?" if problem.kind == "unknown" and close else _OPTIONS_PAGE
        yield Error(f"{problem.where} {problem.message}", hint=hint, id="dhara.E012")
    chosen = project.usable()
    for name in _PATHS:
        if path := getattr(chosen, name):
            yield from _check_path(f"DHARA[{name.upper()!r}]", path)


def _check_path(where: str, path: str) -> Iterator[CheckMessage]:
    try:
        found = import_string(path)
    except ImportError as error:
        yield Error(f"{where} is {path!r}, which cannot be imported: {error}.", id="dhara.E012")
        return
    if not callable(found):
        yield Error(f"{where} is {path!r}, which is {type(found).__name__} and no function.", id="dhara.E012")


def _check_backport() -> Iterator[CheckMessage]:
    if django.VERSION >= (6, 0) and apps.is_installed("django_tasks"):
        yield Warning(
            "INSTALLED_APPS has the backport 'django_tasks', but this Django has its own django.tasks.",
            hint="Remove it, and import from django.tasks or django_dhara instead: functions decorated with the "
            "backport's @task and receivers of its signals are not what django_dhara sees.",
            id="dhara.W004",
        )


def _check_environment() -> Iterator[CheckMessage]:
    known = [f"DHARA_{name.upper()}" for name in conf.OPTIONS]
    for name in sorted(os.environ):
        close = get_close_matches(name, known, 1, cutoff=0.9) if name.startswith("DHARA_") else []
        if close and close[0] != name:
            message = f"environment variable {name} is ignored."
            yield Warning(message, hint=f"Did you mean {close[0]}?", id="dhara.W003")


def _check_time_zone() -> Iterator[CheckMessage]:
    if not settings.USE_TZ:
        yield Warning(
            "USE_TZ is False: dates that tasks are given and show have no time zone.",
            hint="Set USE_TZ = True. Without it a `run_after` in the hour that the clocks are put back is ambiguous.",
            id="dhara.W005",
        )


def _check_connections(database: str, concurrency: int) -> Iterator[CheckMessage]:
    connection = connections[database]
    where = f"DATABASES[{database!r}]"
    pool = connection.settings_dict["OPTIONS"].get("pool")
    if not pool and connection.settings_dict["CONN_MAX_AGE"] == 0:
        yield Warning(
            f"{where}['CONN_MAX_AGE'] is 0: each task that uses the database opens a connection, about 5 ms.",
            hint="Set CONN_MAX_AGE to 60 or so, or OPTIONS['pool'].",
            id="dhara.W006",
        )
    if pool and (size := _pool_size(pool)) < concurrency:
        yield Warning(
            f"{where}['OPTIONS']['pool'] has {size} connections for CONCURRENCY = {concurrency} threads: tasks wait "
            f"for one another, and fail when they wait too long.",
            hint=f'"pool": {{"min_size": 1, "max_size": {concurrency + 2}}}',
            id="dhara.W007",
        )


def _pool_size(pool: Any) -> int:
    sizes = pool if isinstance(pool, Mapping) else {}
    size: int = sizes.get("max_size") or sizes.get("min_size", DEFAULT_POOL_SIZE)
    return size


def check_databases(
    app_configs: object = None, databases: Collection[str] | None = None, **kwargs: object
) -> Iterator[CheckMessage]:
    """What is wrong with the servers that hold a queue: one statement for each."""
    backends = list(_backends()) if _has_tasks_api() else []
    for database in _queue_databases(backends):
        if database in (databases or ()):
            server = _ask(database)
            for check in _SERVER_CHECKS:
                yield from check(database, server)
            if server.isolation in ("repeatable read", "serializable"):
                where = f"default_transaction_isolation of the server of DATABASES[{database!r}]"
                for backend in backends:
                    yield from _atomic_functions(backend.alias, where)


class Server(NamedTuple):
    """What a server says of itself and of the table of tasks (None: there is none yet)."""

    version: int
    recovering: bool
    isolation: str
    autovacuum: bool
    table_autovacuum: bool
    logged: bool | None
    not_durable: str


def _ask(database: str) -> Server:
    with connections[database].cursor() as cursor:
        cursor.execute(
            """
            SELECT current_setting('server_version_num')::int / 10000,
                   pg_is_in_recovery(),
                   current_setting('default_transaction_isolation'),
                   current_setting('autovacuum')::bool,
                   coalesce((SELECT option_value::bool FROM pg_class, pg_options_to_table(reloptions)
                             WHERE oid = to_regclass('dhara_task') AND option_name = 'autovacuum_enabled'), true),
                   (SELECT relpersistence = 'p' FROM pg_class WHERE oid = to_regclass('dhara_task')),
                   (SELECT coalesce(string_agg(name, ', ' ORDER BY name), '') FROM pg_settings
                    WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit') AND setting = 'off')
            """
        )
        return Server(*cursor.fetchone())


def _check_version(database: str, server: Server) -> Iterator[CheckMessage]:
    if server.version < MIN_POSTGRESQL:
        yield Error(
            f"DATABASES[{database!r}] is PostgreSQL {server.version}.",
            hint=f"django_dhara needs PostgreSQL {MIN_POSTGRESQL} or later.",
            id="dhara.E010",
        )


def _check_recovery(database: str, server: Server) -> Iterator[CheckMessage]:
    if server.recovering:
        yield Error(
            f"DATABASES[{database!r}] is a standby, which takes no writes.",
            hint="Point it to the primary; with several hosts, set OPTIONS['target_session_attrs'] to 'read-write'.",
            id="dhara.E011",
        )


def _check_logged(database: str, server: Server) -> Iterator[CheckMessage]:
    if server.logged is False:
        yield Warning(
            f"The table dhara_task in DATABASES[{database!r}] is UNLOGGED: a crash of the server empties it.",
            hint="ALTER TABLE dhara_task SET LOGGED;",
            id="dhara.W010",
        )


def _check_autovacuum(database: str, server: Server) -> Iterator[CheckMessage]:
    if not (server.autovacuum and server.table_autovacuum):
        yield Warning(
            f"autovacuum is off for dhara_task in DATABASES[{database!r}]: claims read past every finished task.",
            hint="Turn autovacuum on, on the server and for this table: a queue's table lives from it.",
            id="dhara.W011",
        )


def _check_durability(database: str, server: Server) -> Iterator[CheckMessage]:
    if server.not_durable:
        yield Warning(
            f"The server of DATABASES[{database!r}] may lose committed tasks in a crash: {server.not_durable} is off.",
            hint="Turn it on wherever a lost task matters.",
            id="dhara.W012",
        )


_SERVER_CHECKS: tuple[Callable[[str, Server], Iterator[CheckMessage]], ...] = (
    _check_version,
    _check_recovery,
    _check_logged,
    _check_autovacuum,
    _check_durability,
)


def _has_tasks_api() -> bool:
    return django.VERSION >= (6, 0) or find_spec("django_tasks") is not None


def _asked_by_the_backport(backend: DharaBackend) -> bool:
    # Beside Django's own tasks, the backport makes backends of its own from the same TASKS and has them checked too.
    backport: Any = sys.modules.get("django_tasks") if django.VERSION >= (6, 0) else None
    if backport is None:
        return False
    return any(each is backend for each in backport.task_backends.all(initialized_only=True))


def _backends() -> Iterator[DharaBackend]:
    from django_dhara.backend import DharaBackend
    from django_dhara.compat import task_backends

    return (backend for backend in task_backends.all() if isinstance(backend, DharaBackend))


def _queue_databases(backends: Iterable[DharaBackend]) -> dict[str, int]:
    """Each PostgreSQL alias that holds a queue, and the largest CONCURRENCY of those."""
    found: dict[str, int] = {}
    for backend in backends:
        options = conf.usable(backend.alias, backend.options)
        if options.database in connections and connections[options.database].vendor == "postgresql":
            found[options.database] = max(options.concurrency, found.get(options.database, 0))
    return found
