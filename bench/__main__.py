"""Measure the parts of Mainspring against their peers, each part in a process of its own, and print one JSON object.

    python -m bench                      every part
    python -m bench loop bus             some parts
    python -m bench --against OTHER bus  this checkout and another in alternation: how each figure has changed

A part that fails is reported as such and the exit code is 1; what the others measured is still printed.
`python -m bench.PART --help` says what a part measures.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PARTS = (
    "limits",
    "loop",
    "log",
    "bus",
    "checks",
    "sdk",
    "kernel",
    "runs",
    "beats",
    "tasks",
    "engines",
    "web",
    "start",
    "sizes",
    "endurance",
)


def measure(part: str, options: list[str], tree: Path = ROOT) -> dict[str, Any]:
    """The figures of one part, measured with the code of a checkout."""
    print(f"bench: {part} in {tree.name} ...", file=sys.stderr, flush=True)
    own = tree / ".venv" / "bin" / "python"
    done = subprocess.run(
        [str(own) if tree != ROOT and own.exists() else sys.executable, str(tree / "bench" / f"{part}.py"), *options],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        cwd=tree,
        env={**os.environ, "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}"},
    )
    if done.returncode != 0:
        return {"failed": f"exit code {done.returncode}"}
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def figures(found: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a result, by its path; of several rounds the median."""
    if isinstance(found, dict) and found.keys() == {"median", "spread"}:
        yield path, float(found["median"])
    elif isinstance(found, dict):
        for name, value in found.items():
            if name not in ("conditions", "goals", "goal", "spread"):
                yield from figures(value, f"{path}.{name}" if path else name)
    elif isinstance(found, int | float) and not isinstance(found, bool):
        yield path, float(found)


def compare(part: str, options: list[str], other: Path, rounds: int) -> dict[str, Any]:
    """Both checkouts in turns: the medians of each figure, and the new one in parts of the old."""
    here: dict[str, list[float]] = {}
    there: dict[str, list[float]] = {}
    for _ in range(rounds):
        for tree, kept in ((other, there), (ROOT, here)):
            for path, value in figures(measure(part, options, tree)):
                kept.setdefault(path, []).append(value)
    result = {}
    for path in here.keys() & there.keys():
        before, after = statistics.median(there[path]), statistics.median(here[path])
        result[path] = {"before": before, "after": after, "ratio": round(after / before, 3) if before else None}
    return dict(sorted(result.items()))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="small numbers: to see that it works, not to quote")
    parser.add_argument("--long", action="store_true", help="also what takes many minutes")
    parser.add_argument("--against", type=Path, metavar="OTHER", help="another checkout, measured in alternation")
    parser.add_argument("--rounds", type=int, default=3, help="of --against (default 3)")
    given = parser.parse_args()
    if unknown := sorted(set(given.parts) - set(PARTS)):
        parser.error(f"unknown part {unknown[0]}; there are: {', '.join(PARTS)}")
    options = [f"--{name}" for name in ("quick", "long") if getattr(given, name)]
    results: dict[str, dict[str, Any]] = {}
    for part in given.parts or PARTS:
        if given.against is None:
            results[part] = measure(part, options)
        else:
            results[part] = compare(part, options, given.against.resolve(), given.rounds)
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}
    print(json.dumps({"machine": machine, **results}, indent=2))
    return 1 if any("failed" in result for result in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
