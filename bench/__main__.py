"""`make bench`: run each part's benchmark in a process of its own and print one JSON object.

`python -m bench loop bus` measures some parts; `--long` adds the measurements that take minutes. A part that fails is
reported as such and the exit code is 1; what the others measured is still printed.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def parts() -> list[str]:
    return sorted(file.stem for file in HERE.glob("*.py") if not file.stem.startswith("_"))


def measure(part: str, options: list[str]) -> dict[str, object]:
    print(f"bench: {part} ...", file=sys.stderr, flush=True)
    done = subprocess.run(
        [sys.executable, str(HERE / f"{part}.py"), *options],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        cwd=HERE.parent,
        env={**os.environ, "PYTHONPATH": str(HERE.parent)},
    )
    if done.returncode != 0:
        return {"failed": f"exit code {done.returncode}"}
    result: dict[str, object] = json.loads(done.stdout)
    return result


def main(arguments: list[str]) -> int:
    options = [word for word in arguments if word.startswith("-")]
    wanted = [word for word in arguments if not word.startswith("-")] or parts()
    unknown = sorted(set(wanted) - set(parts()))
    if unknown:
        print(f"unknown part {unknown[0]}; there are: {', '.join(parts())}", file=sys.stderr)
        return 2
    results = {part: measure(part, options) for part in wanted}
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}
    print(json.dumps({"machine": machine, **results}, indent=2))
    return 1 if any("failed" in result for result in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
