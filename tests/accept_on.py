"""Run the acceptance kit on an engine with a server: `python tests/accept_on.py nats|mongo KIT [PART...]`.

The kit starts many nodes, each with a data directory of its own, and expects each to have a log of its own. So it is
given a command that starts a node whose log is named after its data directory.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence

URL = "ACCEPT_ON_URL"


def node(arguments: Sequence[str]) -> None:
    """Become `mainspring` with these arguments; `serve` gets the engine."""
    given = list(arguments)
    if given[:1] == ["serve"]:
        data = given[given.index("--data") + 1] if "--data" in given else os.getcwd()
        log = hashlib.sha256(data.encode()).hexdigest()[:16]
        if "--engine" in given:
            at = given.index("--engine")
            del given[at : at + 2]
        given += ["--engine", os.environ[URL].replace("LOG", f"kit{log}")]
    os.execv(sys.executable, [sys.executable, "-m", "mainspring", *given])


def kit(engine: str, command: Sequence[str]) -> int:
    """Start a server and run the kit with nodes on it; the kit's exit code."""
    if engine == "nats":
        from servers.nats_server import shared_server

        url = shared_server().url("LOG")
    else:
        from servers.mongo_server import mongo_address, with_database

        url = with_database(mongo_address(), "LOG")
    own = f"{sys.executable} {os.path.abspath(__file__)} node"
    return subprocess.run(command, env={**os.environ, URL: url, "MAINSPRING": own}).returncode


if __name__ == "__main__":
    if sys.argv[1] == "node":
        node(sys.argv[2:])
    sys.exit(kit(sys.argv[1], sys.argv[2:]))
