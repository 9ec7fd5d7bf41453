"""The two ways to a node's HTTP API: its own port (aiohttp), and `app.asgi` inside a web server (here uvicorn).

    python -m bench.web [--quick]

Prints one JSON object. One process has both: a FastAPI program under uvicorn with `app.asgi` mounted, and a node in it
that also listens on a port. So both reach the same node on the same event loop, in turns. Clients keep connections
open and have `clients` requests under way. `per_s` is requests per second, `us` the processor time of that process for
each request, `p50_ms` how long one client alone waits. `bare` is a route of the same FastAPI program that does nothing:
what uvicorn and FastAPI cost by themselves. A ratio below 1 says how much slower `app.asgi` is.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp

from bench.harness import medians, options, ratio, report, spread
from bench.peers.servers import cpu_s, free_port
from mainspring.loop import run

PROGRAM = """
import os
from fastapi import FastAPI
from mainspring import App

shop = App("shop")
api = FastAPI(lifespan=lambda _: shop.running(data="data", port=int(os.environ["NODE_PORT"])))
api.mount("/mounted", shop.asgi)


@api.get("/bare")
async def bare() -> dict:
    return {}
"""
REQUESTS: dict[str, tuple[str, str, Any]] = {
    "read": ("GET", "/topics/bench", None),
    "publish": ("POST", "/topics/bench/events", {"payload": {"order": 17, "note": "x" * 120}}),
}
CLIENTS = 16


async def _ask(session: aiohttp.ClientSession, url: str, request: tuple[str, str, Any]) -> None:
    method, path, body = request
    async with session.request(method, f"{url}{path}", json=body) as answer:
        assert answer.status in (200, 201), await answer.text()
        await answer.read()


async def _many(session: aiohttp.ClientSession, url: str, request: tuple[str, str, Any], count: int) -> float:
    left = iter(range(count))

    async def client() -> None:
        for _ in left:
            await _ask(session, url, request)

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return time.perf_counter() - start


async def _measure(
    session: aiohttp.ClientSession, pid: int, url: str, request: tuple[str, str, Any], count: int
) -> tuple[float, float, float]:
    """Requests per second, processor seconds for each, and seconds of one alone."""
    before = cpu_s(pid)
    seconds = await _many(session, url, request, count)
    used = (cpu_s(pid) - before) / count
    alone = []
    for _ in range(max(20, count // 20)):
        start = time.perf_counter()
        await _ask(session, url, request)
        alone.append(time.perf_counter() - start)
    return count / seconds, used, statistics.median(alone)


def _figures(rows: list[tuple[float, float, float]]) -> dict[str, float]:
    per_s, used, alone = medians(rows)
    return {"per_s": round(per_s), "us": round(used * 1e6), "p50_ms": round(alone * 1e3, 2)}


async def measure(quick: bool) -> dict[str, Any]:
    count, rounds = (200, 2) if quick else (2_000, 5)
    port, node_port = free_port(), free_port()
    with tempfile.TemporaryDirectory(prefix="ms-bench-") as folder:
        (Path(folder) / "web.py").write_text(PROGRAM)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "uvicorn", "web:api", "--port", str(port), "--log-level", "warning"),
            cwd=folder,
            env={"NODE_PORT": str(node_port), "PYTHONPATH": str(Path(__file__).parents[1] / "src")},
        )
        own, mounted = f"http://127.0.0.1:{node_port}", f"http://127.0.0.1:{port}/mounted"
        try:
            async with aiohttp.ClientSession() as session:
                await _answers(session, own)
                await session.post(f"{own}/topics", json={"topic": "bench"})
                figures: dict[str, Any] = {}
                for name, request in REQUESTS.items():
                    rows = [
                        [await _measure(session, process.pid, url, request, count) for url in (own, mounted)]
                        for _ in range(rounds + 1)
                    ][1:]
                    pairs = [(asgi[0], port_[0]) for port_, asgi in rows]
                    figures[name] = {
                        "port": _figures([row[0] for row in rows]),
                        "asgi": _figures([row[1] for row in rows]),
                        "ratio": ratio(pairs),
                        "spread": spread(pairs),
                    }
                bare = ("GET", "/bare", None)
                found = [
                    await _measure(session, process.pid, f"http://127.0.0.1:{port}", bare, count) for _ in range(rounds)
                ]
                return figures | {"bare": _figures(found)}
        finally:
            process.terminate()
            await process.wait()


async def _answers(session: aiohttp.ClientSession, url: str) -> None:
    for _ in range(600):
        try:
            async with session.get(f"{url}/topics"):
                return
        except aiohttp.ClientError:
            await asyncio.sleep(0.05)
    raise RuntimeError(f"nothing listens at {url}")


if __name__ == "__main__":
    report(run(measure(options(__doc__).quick)), clients=CLIENTS, engine="SQLite, fsync before every acknowledgement")
