"""`python -m tests.fuzz.openapi SCHEMATHESIS [OPTIONS]`: what schemathesis makes of the node's own OpenAPI document.

It sends what the document allows and what it does not; no answer may be a server's error. Streams are left out: they do
not end. Further options go to `schemathesis run`; `--seed` repeats a run.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.support.victim import Innocent, attacked

EXAMPLES = 100  # of each operation and phase


def main(arguments: Sequence[str]) -> int:
    """The exit code: not 0 where something failed."""
    program, *options = arguments
    with tempfile.TemporaryDirectory(prefix="ms-") as folder, attacked(Path(folder), tokens=False) as node:
        innocent = Innocent(node)
        innocent.start()
        command = [
            *(str(Path(program).absolute()), "run", f"http://127.0.0.1:{node.port}/openapi.json"),
            *("--checks", "not_a_server_error", "--max-examples", str(EXAMPLES)),
            *("--phases", "examples,coverage,fuzzing", "--exclude-path-regex", "stream$"),
            *("--request-timeout", "30", *options),
        ]
        code = subprocess.run(command, check=False, cwd=folder).returncode
        innocent.stop()
        print(f"innocent client: {innocent.answers} answers, the longest after {innocent.longest_s:.2f} s")
        return code or int(bool(innocent.failures))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
