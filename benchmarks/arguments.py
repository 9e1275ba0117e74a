"""The command line: what is wrong with it is one line and exit code 2."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from benchmarks.contender import Contender
from benchmarks.ours import BARE, OURS
from benchmarks.peers import PEERS
from benchmarks.workloads import WORKLOADS
from benchmarks.workloads.workload import Workload

_Thing = TypeVar("_Thing")


@dataclass(frozen=True)
class Arguments:
    """What to do. `contenders` begins with ours and the limit."""

    workloads: list[Workload]
    contenders: list[Contender]
    rounds: int
    quick: bool
    long: bool
    json: bool


def parse(words: Sequence[str] | None = None) -> Arguments:
    """Read the command line, that of the process by default.

    Raises:
        SystemExit: 2, and a line on stderr.
    """
    parser = _parser()
    given = parser.parse_args(words)
    try:
        workloads = _chosen("workload", given.workloads, WORKLOADS)
        peers = _peers(given.peers)
    except ValueError as error:
        parser.error(str(error))
    if given.rounds < 1:
        parser.error(f"--rounds must be at least 1, not {given.rounds}")
    return Arguments(
        workloads, [OURS, BARE, *peers], 1 if given.quick else given.rounds, given.quick, given.long, given.json
    )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"benchmarks: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m benchmarks",
        description="Measure django_dhara beside other queues, on one server, in turns.",
        epilog="Exit code: 0, or 1 if a contender failed, or 2 for a wrong argument. A missed target is no failure.",
    )
    known = ", ".join(WORKLOADS)
    parser.add_argument("workloads", nargs="+", metavar="WORKLOAD", help=f"all, or some of {known}")
    peers = ",".join(peer.name for peer in PEERS)
    parser.add_argument("--peers", default="all", metavar="NAMES", help=f"all, none, or some of {peers}; default: all")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured; default: 3")
    parser.add_argument("--quick", action="store_true", help="one round of a tenth: does it work? Nothing is kept")
    parser.add_argument("--long", action="store_true", help="W8 for 15 minutes at 300 tasks/s, too")
    parser.add_argument("--json", action="store_true", help="one object on stdout, all else on stderr")
    return parser


def _peers(names: str) -> list[Contender]:
    known = {peer.name: peer for peer in PEERS}
    return [] if names == "none" else _chosen("peer", names.split(","), known, or_none=True)


def _chosen(kind: str, names: Sequence[str], known: dict[str, _Thing], *, or_none: bool = False) -> list[_Thing]:
    """The things of these names, each once, in the order of `known`."""
    for name in names:
        if name != "all" and name not in known:
            also = ["all", *(["none"] if or_none else [])]
            raise ValueError(f"unknown {kind} {name!r}; there are: {', '.join([*known, *also])}")
    return list(known.values()) if "all" in names else [thing for name, thing in known.items() if name in names]
