"""python -m mainspring.testing.simulation MODULE:SCENARIO [--seeds 500] [--seed 17 [--steps 2,5]] [--jobs 2]"""

from __future__ import annotations

import argparse
import os
import sys

from mainspring.import_path import find_object
from mainspring.testing.simulation import Exploration, Scenario, explore, run


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m mainspring.testing.simulation", description="Run a scenario under faults."
    )
    parser.add_argument("scenario", help="MODULE:CLASS, a Scenario")
    parser.add_argument("--seeds", default="500", help="how many, or FIRST:END")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the work")
    parser.add_argument("--seed", type=int, help="show this run")
    parser.add_argument("--steps", help="of that run only these steps of its plan: 2,5,9, or none")
    asked = parser.parse_args()
    scenario = find_object(asked.scenario)
    if not (isinstance(scenario, type) and issubclass(scenario, Scenario)):
        parser.error(f"{asked.scenario} is not a Scenario")
    if asked.seed is not None:
        steps = None if asked.steps is None else [int(each) for each in asked.steps.split(",") if each != "none"]
        result = run(scenario, asked.seed, steps)
        print("\n".join(result.trace))
        print("\n".join(result.broken) or "every promise was kept")
        return bool(result.broken)
    first, _, end = asked.seeds.rpartition(":")
    report = explore(scenario, range(int(first or 0), int(end)), jobs=asked.jobs, progress=_show)
    print(report)
    return bool(report.failures)


def _show(report: Exploration) -> None:
    if report.seeds % 500 == 0:
        print(str(report).partition("\n")[0], file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    sys.exit(main())
