"""python -m mainspring.testing.simulation MODULE:SCENARIO [--seeds 500 [--from 200]] [--seed 17 [--steps 2]] [--jobs 2]

While it goes on it says after every 500 seeds where it is. Interrupted, it says from which seed on to go on (`--from`).
"""

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
    parser.add_argument("--from", type=int, dest="first", help="begin with this seed: those before were tried")
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
    seeds = range(int(first or 0) if asked.first is None else asked.first, int(end))
    shown = Exploration()

    def show(report: Exploration) -> None:
        nonlocal shown
        shown = report
        if report.seeds % 500 == 0:
            print(f"next: {report.next_seed}; {str(report).splitlines()[0]}", file=sys.stderr, flush=True)

    try:
        shown = explore(scenario, seeds, jobs=asked.jobs, progress=show)
    except KeyboardInterrupt:
        print(f"interrupted; go on with --from {seeds.start if shown.next_seed is None else shown.next_seed}")
    print(shown)
    return bool(shown.failures)


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    sys.exit(main())
