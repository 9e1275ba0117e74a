"""The queues that ours is measured against, each at its best documented settings for the workload.

A driver is a program of a few lines in the peer's own environment; ``shared/`` holds what the Python ones share.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.contender import Contender
from benchmarks.peers.redis import count

_PSYCOPG = "psycopg[binary]==3.3.9"
_DJANGO = "Django==6.1.3"


def _unacknowledged(variables: Mapping[str, str]) -> int:
    """What is in the queue, and what a worker holds."""
    return count(variables["BENCH_REDIS"], ("LLEN", "celery"), ("HLEN", "unacked"))


PEERS: tuple[Contender, ...] = (
    Contender(
        name="graphile-worker",
        driver=("node", "peers/graphile-worker/driver.mjs"),
        # It asks for Node 22; the second package is one, whatever the machine has.
        requirements=("graphile-worker@0.18.0", "node@24.21.0"),
        ecosystem="node",
        remaining="SELECT count(*) FROM graphile_worker._private_jobs",
        settings="its performance page: 24 concurrent jobs, 25 connections, local queue 500, completions batched "
        "without delay; W5: concurrent jobs = slots, local queue slots + 1; finished jobs are deleted",
    ),
    Contender(
        name="pgqueuer",
        driver=("{python}", "peers/pgqueuer/driver.py"),
        requirements=("pgqueuer[asyncpg]==1.6.0", "asyncpg==0.32.0", "uvloop==0.23.0", _PSYCOPG),
        ecosystem="python",
        remaining="SELECT count(*) FROM pgqueuer",
        settings="asyncpg, uvloop, all tables logged, batch size 100; W5: batch size 1, max_concurrent_tasks = slots "
        "(a larger batch leaves slots idle until it is full); finished jobs move to a log table",
        done="SELECT count(*) FROM pgqueuer_log WHERE status = 'successful'",
    ),
    Contender(
        name="celery",
        driver=("{python}", "peers/celery/driver.py"),
        requirements=("celery[redis]==5.7.0", "redis==8.1.0", "hiredis==3.5.0", _PSYCOPG),
        ecosystem="python",
        remaining=_unacknowledged,
        settings="Redis, append-only file flushed every second; late acknowledgement, results ignored, no gossip, "
        "mingle or heartbeat; 20 threads, prefetch 128 each; W3: kombu's batch(); W5: threads = slots, prefetch 1",
        needs_redis=True,
        slow=0.2,
    ),
    Contender(
        name="oban",
        driver=("{python}", "peers/oban/driver.py"),
        requirements=("oban==0.7.0", "uvloop==0.23.0", "psycopg-pool==3.3.3", _PSYCOPG),
        ecosystem="python",
        remaining="SELECT count(*) FROM oban_jobs WHERE state IN ('available', 'scheduled', 'executing', 'retryable')",
        settings="uvloop, its own pool of up to 10 connections, queue limit 500; W5: queue limit = slots",
        done="SELECT count(*) FROM oban_jobs WHERE state = 'completed'",
    ),
    Contender(
        name="procrastinate",
        driver=("{python}", "peers/procrastinate/driver.py"),
        requirements=("procrastinate==3.10.0", "psycopg-pool==3.3.3", _PSYCOPG),
        ecosystem="python",
        remaining="SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')",
        settings="async, pool of up to 10 connections, concurrency 10, finished jobs kept; W5: concurrency = slots",
        slow=0.1,
        done="SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'",
    ),
    Contender(
        name="dj-queue",
        driver=("{python}", "peers/dj-queue/driver.py"),
        requirements=("dj-queue==0.14.2", _DJANGO, _PSYCOPG),
        ecosystem="python",
        remaining="SELECT (SELECT count(*) FROM dj_queue_ready_executions) "
        "+ (SELECT count(*) FROM dj_queue_claimed_executions)",
        settings="CONN_MAX_AGE=None, async mode (threads in one process), LISTEN, finished jobs kept, 20 threads, "
        "prefetch_multiplier 20; W5: threads = slots, prefetch_multiplier 2",
        slow=0.2,
        done="SELECT count(*) FROM dj_queue_jobs WHERE finished_at IS NOT NULL",
    ),
    Contender(
        name="django-ox",
        driver=("{python}", "peers/django-ox/driver.py"),
        requirements=("django-ox==1.9.1", _DJANGO, _PSYCOPG),
        ecosystem="python",
        remaining="SELECT count(*) FROM django_ox_oxtask WHERE status IN ('READY', 'WAITING', 'RUNNING')",
        settings="CONN_MAX_AGE=None, 20 threads; W5: threads = slots; --interval 1 s, in W4 0.1 s",
        slow=0.1,
        done="SELECT count(*) FROM django_ox_oxtask WHERE status = 'SUCCESSFUL'",
    ),
    Contender(
        name="django-tasks-db",
        driver=("{python}", "peers/django-tasks-db/driver.py"),
        requirements=("django-tasks-db==0.13.0", _DJANGO, _PSYCOPG),
        ecosystem="python",
        remaining="SELECT count(*) FROM django_tasks_database_dbtaskresult WHERE status IN ('READY', 'RUNNING')",
        settings="CONN_MAX_AGE=None; a worker runs one task at a time, in W5, too; --interval 1 s, in W4 0.1 s; "
        "W3: enqueue in one transaction, as there is no bulk call",
        slow=0.05,
        done="SELECT count(*) FROM django_tasks_database_dbtaskresult WHERE status = 'SUCCESSFUL'",
    ),
)
