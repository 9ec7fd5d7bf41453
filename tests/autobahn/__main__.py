"""`python -m tests.autobahn WSTEST [CASES ...]`: the Autobahn test suite against the client and the node.

WSTEST is the suite's program; CASES are as it takes them (`6.*`), by default all that apply. Prints the cases that are
not passed, and how many there are of each outcome. The exit code is 1 when one failed.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from tests.autobahn.echo import EchoSocket, echo_as_client, echo_as_node

COMPRESSION: Final = ["12.*", "13.*"]  # neither side offers it
BINARY: Final = [
    "1.2.*",
    "9.2.*",
    "9.4.*",
    "9.6.*",
    "9.8.*",
]  # the node refuses binary frames and goes on
GOOD: Final = ("OK", "NON-STRICT", "INFORMATIONAL", "UNIMPLEMENTED")


async def judge_client(wstest: str, folder: Path, cases: Sequence[str]) -> dict[str, Any]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spec = {"url": f"ws://127.0.0.1:{port}", "exclude-cases": COMPRESSION}
    async with _suite(wstest, "fuzzingserver", folder, cases, spec):
        count = int((await _first_answer(port)).seen[0])
        for case in range(1, count + 1):
            await echo_as_client(port, f"/runCase?case={case}&agent=client")
        await echo_as_client(port, "/updateReports?agent=client")
    return _judgements(folder)


async def judge_node(wstest: str, folder: Path, cases: Sequence[str]) -> dict[str, Any]:
    async with echo_as_node() as port:
        servers = [{"agent": "node", "url": f"ws://127.0.0.1:{port}"}]
        spec = {"servers": servers, "exclude-cases": COMPRESSION + BINARY}
        async with _suite(wstest, "fuzzingclient", folder, cases, spec) as process:
            await process.wait()
    return _judgements(folder)


async def _first_answer(port: int) -> EchoSocket:
    """How many cases there are; a server that has just been started is asked until it answers."""
    while True:
        try:
            return await echo_as_client(port, "/getCaseCount", echoes=False)
        except OSError:
            await asyncio.sleep(0.2)


@asynccontextmanager
async def _suite(
    wstest: str, mode: str, folder: Path, cases: Sequence[str], spec: dict[str, Any]
) -> AsyncIterator[asyncio.subprocess.Process]:
    file = folder / "spec.json"
    file.write_text(json.dumps({"outdir": str(folder), "cases": list(cases), "exclude-agent-cases": {}, **spec}))
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        wstest, "-m", mode, "-s", str(file), "-w", str(folder), stdout=quiet, cwd=folder
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


def _judgements(folder: Path) -> dict[str, Any]:
    (found,) = json.loads((folder / "index.json").read_text()).values()
    return dict(found)


def report(side: str, found: dict[str, Any]) -> bool:
    """Print it; whether everything is passed."""
    outcomes = Counter(case["behavior"] for case in found.values())
    closes = Counter(case["behaviorClose"] for case in found.values())
    print(f"{side}: {len(found)} cases: {dict(outcomes)}; how they closed: {dict(closes)}", flush=True)
    bad = {number: case for number, case in found.items() if not _passed(case)}
    for number, case in sorted(bad.items()):
        print(f"  {number}: {case['behavior']}, close {case['behaviorClose']} ({case['remoteCloseCode']})")
    return not bad and bool(found)


def _passed(case: dict[str, Any]) -> bool:
    return case["behavior"] in GOOD and case["behaviorClose"] in GOOD


def main(arguments: Sequence[str]) -> int:
    wstest, *cases = arguments
    wstest = os.path.abspath(wstest)
    passed = True
    for side, judge in (("client", judge_client), ("node", judge_node)):
        with tempfile.TemporaryDirectory(prefix="ms-") as folder:
            passed &= report(side, asyncio.run(judge(wstest, Path(folder), cases or ["*"])))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
