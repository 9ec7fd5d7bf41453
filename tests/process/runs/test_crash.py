"""Death at every single write of a durable program: one outcome, nothing lost, nothing exactly-once doubled."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.support.paths import ROOT


def test_a_process_killed_at_any_write_leaves_one_outcome_and_no_doubled_event(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.runs_crash_program", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    crashes = [json.loads(line) for line in done.stdout.splitlines()]
    assert crashes[0]["writes"] >= 12, "the start, ten answers and the outcome"
    assert all(crash["killed"] for crash in crashes[1:])
    assert len(crashes) == 1 + 2 * crashes[0]["writes"]
    for crash in crashes:
        where = f"killed {crash['when']} write {crash['at']}"
        assert crash["value"] == sum(range(10)), where
        assert crash["journal"] == [["Record" if n % 2 == 0 else "Touch", n] for n in range(10)], where
        assert crash["events"] == [[f"a#{n:08d}", n] for n in range(0, 10, 2)], where
        touched = Counter(crash["touched"])
        assert set(touched) == {f"a#{n:08d} {n}" for n in range(1, 10, 2)}, where
        assert sum(touched.values()) <= 6, f"{where}: at most the interrupted effect is repeated, with the same key"
