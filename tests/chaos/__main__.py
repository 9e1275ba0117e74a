"""Run profiles, judge them, say what they came to; see the package.

Exit code: 0 all passed, 1 a violation, 2 a fault that did not hit.
"""

import argparse
import json
import random
import sys

from tests.chaos import document, report
from tests.chaos.profiles import PROFILES
from tests.chaos.run import NotInstalled, run


def main():
    given = _arguments()
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(10**6)
    names = given.profile or list(PROFILES)
    if not given.json:
        print(f"seed {seed}, profiles {' '.join(names)}, {given.minutes:g} minutes each", flush=True)
    results = []
    for name in names:
        try:
            result = run(PROFILES[name], seed=seed, minutes=given.minutes, plant=given.plant, keep=given.keep)
        except NotInstalled as error:
            print(f"{error}: not run", file=sys.stderr)
            continue
        results.append(result)
        if not given.json:
            print(report.text(result), flush=True)
    if given.json:
        print(json.dumps([result.as_dict() for result in results], indent=1))
    if given.record:
        document.record(results)
    words = {result.verdict.word for result in results}
    sys.exit(1 if "FAIL" in words else 2 if "VACUOUS" in words else 0)


def _arguments():
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__.splitlines()[0])
    parser.add_argument("--profile", action="append", choices=list(PROFILES), help="may be given again; default: all")
    parser.add_argument("--minutes", type=float, default=2.0, help="of load with faults, for each profile")
    parser.add_argument("--seed", type=int, help="default: a new one, which is printed first")
    parser.add_argument("--plant", default="", help="a bug of tests/chaos/app/plants.py")
    parser.add_argument("--json", action="store_true", help="print figures for programs")
    parser.add_argument("--keep", metavar="FOLDER", help="keep histories and logs here")
    parser.add_argument("--record", action="store_true", help="add the figures to docs/explanation/reliability.md")
    return parser.parse_args()


if __name__ == "__main__":
    main()
