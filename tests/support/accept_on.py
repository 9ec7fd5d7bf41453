"""Run the acceptance kit on another engine: `python -m tests.support.accept_on ENGINE KIT [PART...]`.

ENGINE is memory, nats, mongo or postgres.

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
OUTLIVES_THE_NODE = (  # what these ask for, a log in memory says it cannot give: to be there after the process ended
    "test_sigterm_ends_with_status_0_and_keeps_events",
    "test_s3_after_kill_9_a_group_resumes_behind_its_commit",
    "test_s3_from_offset_0_also_resumes_behind_the_commit",
    "test_s3_offsets_go_on_after_kill_9",
)


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
    env = {**os.environ, URL: address(engine), "MAINSPRING": f"{sys.executable} {os.path.abspath(__file__)} node"}
    if engine == "memory":
        env["PYTEST_ADDOPTS"] = " ".join(f"--deselect test_bus_public.py::{name}" for name in OUTLIVES_THE_NODE)
    return subprocess.run(command, env=env).returncode


def address(engine: str) -> str:
    """What `--engine` is given, with `LOG` where the log's name belongs."""
    if engine == "memory":
        return "memory"
    if engine == "nats":
        from tests.support.nats_server import shared_server

        return shared_server().url("LOG")
    if engine == "postgres":
        from tests.support.postgres import shared_postgres

        return f"{shared_postgres().url('postgres')}?schema=LOG"
    from tests.support.mongo_server import mongo_address, with_database

    return with_database(mongo_address(), "LOG")


if __name__ == "__main__":
    if sys.argv[1] == "node":
        node(sys.argv[2:])
    sys.exit(kit(sys.argv[1], sys.argv[2:]))
