"""Every program on the client's pages runs as it stands, against a real node."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.client_node import Node
from tests.support.paths import ROOT
from tests.support.serving import clean_environment

DOCS = ROOT / "docs"
PAGES = ("reference/client.md", "how-to/consume.md")
PROGRAMS = [
    pytest.param(program, id=f"{page}-{number}")
    for page in PAGES
    for number, program in enumerate(re.findall(r"```python no-run\n(.*?)```", (DOCS / page).read_text(), re.DOTALL))
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_program_runs(node: Node, tmp_path: Path, program: str) -> None:
    script = tmp_path / "program.py"
    script.write_text(program)
    done = subprocess.run(
        [sys.executable, str(script)],
        env=clean_environment({"BUS_URL": node.url}),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
