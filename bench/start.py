"""How long until it answers: importing, and from the start of the process to the first reply.

Prints one JSON object. The other side is a bare aiohttp server with one route, because that is what any Python HTTP
service pays at least. Both are started alternately, with compiled modules in one cache that a first, unmeasured
start has filled, and each ratio is the median of its pairs, so that a busy machine slows both sides. Goals stand beside
the ratios; no time is ever asserted.

- `import`: `import mainspring` and `from mainspring import App`, without the interpreter's own start, against
  `import aiohttp.web`.
- `first_reply`: from spawning the process to a 200 of `/healthz`, for a node with the memory engine and one with SQLite
  on an empty data directory, each with a small program.
- `boot`: the part of it that a node spends in its seven phases, measured inside the process.
"""

from __future__ import annotations

import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.harness import Figures, compare, options, report

ROUNDS = 9

BARE = """
import sys
from aiohttp import web

async def health(request):
    return web.json_response({"ok": True})

app = web.Application()
app.router.add_get("/healthz", health)

async def main():
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()

import asyncio
asyncio.run(main())
"""

PROGRAM = """
from mainspring import App, Event

app = App("small")

@app.command("Greeting.Say")
async def say(data: dict, ctx) -> dict:
    await ctx.publish("greetings", data)
    return data

@app.consumer("greetings")
async def heard(event: Event[dict]) -> None: ...
"""

BOOT = """
import asyncio, sys, time
sys.path.insert(0, ".")
from mainspring.node import Node
from mainspring.settings import Settings

async def main():
    node = Node(Settings(port=0, engine=sys.argv[1], data=sys.argv[2]), "small:app")
    began = time.perf_counter()
    await node.boot()
    print(time.perf_counter() - began)
    await node.drain()

asyncio.run(main())
"""


class Workshop:
    """A folder with the programs, and a cache of compiled modules that both sides share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bare.py").write_text(BARE)
        (folder / "small.py").write_text(PROGRAM)
        (folder / "boot.py").write_text(BOOT)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("MAINSPRING", "BUS_"))}
        kept.pop("PYTHONDONTWRITEBYTECODE", None)
        self.env = {**kept, "PYTHONPYCACHEPREFIX": str(folder / "cache")}
        self._count = 0

    def data(self) -> str:
        self._count += 1
        return str(self.folder / f"data{self._count}")

    def imported(self, code: str) -> float:
        """Seconds that a statement takes in a fresh interpreter."""
        script = f"import time; began = time.perf_counter(); {code}; print(time.perf_counter() - began)"
        done = subprocess.run(
            [sys.executable, "-c", script], env=self.env, cwd=self.folder, capture_output=True, text=True, check=True
        )
        return float(done.stdout)

    def booted(self, engine: str) -> float:
        """Seconds between the beginning and the end of a boot."""
        done = subprocess.run(
            [sys.executable, "boot.py", engine, self.data()],
            env=self.env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=True,
        )
        return float(done.stdout)

    def bare(self) -> float:
        return self._first_reply([sys.executable, "bare.py"], int)

    def node(self, engine: str) -> float:
        data = self.data()
        command = [sys.executable, "-m", "mainspring", "serve", "small:app", "--port", "0", "--engine", engine]
        return self._first_reply([*command, "--data", data], _port_of)

    def _first_reply(self, command: list[str], port_of: Callable[[str], int]) -> float:
        began = time.perf_counter()
        with subprocess.Popen(
            command, env=self.env, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            try:
                assert process.stdout is not None
                connection = http.client.HTTPConnection("127.0.0.1", port_of(process.stdout.readline()), timeout=30)
                connection.request("GET", "/healthz")
                answer = connection.getresponse()
                answer.read()
                took = time.perf_counter() - began
                assert answer.status == 200, answer.status
                connection.close()
            finally:
                process.kill()
        return took


def _port_of(line: str) -> int:
    """The port in the boot message."""
    (address,) = (each for each in json.loads(line)["data"]["adapters"] if each.startswith("http:"))
    return int(address.rsplit(":", 1)[1])


def slower(ours: Callable[[], float], theirs: Callable[[], float]) -> Figures:
    """Milliseconds of both, and how many times theirs fits into ours."""
    return compare(theirs, ours, ("aiohttp_ms", "ours_ms"), ROUNDS, scale=1000)


def main() -> None:
    global ROUNDS
    if options(__doc__).quick:
        ROUNDS = 1
    with tempfile.TemporaryDirectory(prefix="ms-start-") as folder:
        workshop = Workshop(Path(folder))

        def other() -> float:
            return workshop.imported("import aiohttp.web")

        results: dict[str, object] = {
            "goals": {"import_mainspring_ms": 150, "boot_ms": 400, "first_reply_ratio": 2.0},
            "import": {
                "mainspring": slower(lambda: workshop.imported("import mainspring"), other),
                "app": slower(lambda: workshop.imported("from mainspring import App"), other),
            },
            "first_reply": {
                engine: slower(lambda engine=engine: workshop.node(engine), workshop.bare)  # type: ignore[misc]
                for engine in ("memory", "sqlite")
            },
            "boot": {
                engine: {"ms": round(statistics.median(workshop.booted(engine) for _ in range(ROUNDS)) * 1000)}
                for engine in ("memory", "sqlite")
            },
        }
    report(results, rounds=ROUNDS, compiled="modules compiled before, in one cache for both")


if __name__ == "__main__":
    main()
