"""The queues that ours is measured against, each at its best documented settings for the workload.

A driver is a program of a few lines in the peer's own environment; ``shared/`` holds what the Python ones share.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.contender import Contender
from benchmarks.peers.redis import count

_PSYCOPG = "psycopg[binary]==3.3.9"


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
        settings="Redis, append-only file flushed every second; late acknowledgement, results ignored, no gossip, mingle "
        "or heartbeat; 20 threads, prefetch 128 each; W5: threads = slots, prefetch 1 each; W3 by kombu's batch()",
        needs_redis=True,
        slow=0.2,
    ),
)
