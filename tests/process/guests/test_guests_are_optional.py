"""A node pays for guests when it has some: what serves them is imported when it is used, and not before."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
{statement}
print(*sorted({{name.split(".")[1] for name in sys.modules if name.startswith("mainspring.guests")}}
              | {{name for name in ("wasmtime", "prometheus_client") if name in sys.modules}}))
"""


def loaded_by(statement: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(statement=statement)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_a_node_imports_no_guests_no_wasmtime_and_no_metrics() -> None:
    assert loaded_by("import mainspring.node.node") == ""


def test_importing_runs_and_the_commands_imports_no_guests() -> None:
    assert loaded_by("import mainspring.runs, mainspring.app, mainspring.testing, mainspring.cli.commands") == ""


def test_loading_a_guest_does_not_import_wasmtime_before_a_module_is_run() -> None:
    assert loaded_by("import mainspring.guests.wasm, mainspring.guests.voyd, mainspring.guests.socket") == "guests"
