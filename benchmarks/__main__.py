"""The command: `python -m benchmarks W1 [W2 ...|all]`; see `README.md` beside this file."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from benchmarks import arguments, plots, results, server, table
from benchmarks.progress import Progress
from benchmarks.run import Run, Section, count_steps
from benchmarks.workloads.workload import Scale
from example_project.localdb.errors import LocalDatabaseError


def main(words: Sequence[str] | None = None) -> int:
    """Run what the command line says; return the exit code."""
    given = arguments.parse(words)
    scale = Scale(given.quick, given.long)
    signal.signal(signal.SIGTERM, _interrupted)
    progress = Progress(count_steps(given.workloads, given.contenders, given.rounds, scale))
    sections: list[Section] = []
    try:
        with server.running() as running:
            if running.others():
                progress.say("benchmarks: another run is going on, on the same server: neither measures anything")
            run = Run(running, given.contenders, given.rounds, scale, progress)
            for section in run.sections(given.workloads):
                sections.append(section)
                _tell(section, progress, given.json)
    except KeyboardInterrupt:
        progress.say("benchmarks: interrupted; what had ended is kept")
        return 130
    except (LocalDatabaseError, OSError) as error:
        progress.say(f"benchmarks: {error}")
        return 1
    progress.close()
    if given.json:
        print(json.dumps({"workloads": {section["workload"]: section for section in sections}}))
    return 1 if any(section["failed"] for section in sections) else 0


def _tell(section: Section, progress: Progress, is_json: bool) -> None:
    progress.close()
    for line in table.lines(section):
        print(line, file=sys.stderr if is_json else sys.stdout, flush=True)
    if section["quick"]:
        return
    results.keep(section, plots.draw(section, progress.say))


def _interrupted(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
