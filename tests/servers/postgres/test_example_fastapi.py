"""The FastAPI example on a real PostgreSQL, under `uvicorn --workers 3`, killed and started again under load.

Every order that was answered is billed exactly once, and no order is billed that is not there.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import httpx

from tests.support.nats_server import free_port
from tests.support.paths import ROOT
from tests.support.postgres import shared_postgres
from tests.support.serving import PATIENCE_S, clean_environment

EXAMPLE = ROOT / "examples" / "fastapi_shop"


@contextmanager
def served(folder: Path, database: str, port: int, workers: int) -> Iterator[subprocess.Popen[bytes]]:
    environment = clean_environment({"DATABASE_URL": database, "PYTHONPATH": str(EXAMPLE)})
    command = [sys.executable, "-m", "uvicorn", "shop:api", "--port", str(port), "--workers", str(workers)]
    server = subprocess.Popen([*command, "--log-level", "warning"], cwd=folder, env=environment)
    try:
        yield server
    finally:
        server.terminate()
        server.wait(PATIENCE_S)


async def ask(method: str, url: str, **options: Any) -> Any:
    """On a connection of its own, so that any worker may answer; None when none did."""
    try:
        async with httpx.AsyncClient(timeout=PATIENCE_S) as browser:
            answer = await browser.request(method, url, **options)
    except httpx.TransportError:
        return None
    return answer.json() if answer.is_success else None


async def until(look: Any) -> Any:
    async with asyncio.timeout(2 * PATIENCE_S):
        while not (found := await look()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return found


async def test_what_was_answered_is_billed_once_whatever_is_killed(tmp_path: Path) -> None:
    server, name = shared_postgres(), f"shop_{os.getpid()}"
    control = await asyncpg.connect(server.url("postgres"))
    await control.execute(f"CREATE DATABASE {name}")
    url = f"http://127.0.0.1:{(port := free_port())}"
    answered: dict[str, int] = {}

    async def order(number: str) -> Any:
        given = {"number": number, "customer": f"c-{len(answered) % 3}"}
        answer = await ask("POST", f"{url}/orders", json=given)
        if answer is not None:
            answered[number] = answer["worker"]
        return answer

    async def bills() -> list[str]:
        return list(await ask("GET", f"{url}/bills") or [])

    async def all_billed() -> bool:
        return set(answered) <= set(await bills())

    with served(tmp_path, server.url(name), port, 3):
        await until(lambda: order("o-first"))
        killed: set[int] = set()
        for most in (1, 3):  # one worker, the node or not; then all of them
            await asyncio.gather(*(order(f"o-{most}-{number}") for number in range(20)))
            for worker in sorted(set(answered.values()) - killed)[:most]:
                os.kill(worker, signal.SIGKILL)
                killed.add(worker)
            await until(lambda: order(f"o-after-{len(answered)}"))
        await until(all_billed)
    with served(tmp_path, server.url(name), port, 1):  # a deployment
        await until(lambda: order("o-last"))
        await until(all_billed)
        found = Counter(await bills())
        assert max(found.values()) == 1
        assert await ask("POST", f"{url}/orders/o-last/delivered", params={"to": "ada"}) == {
            "delivery": "o-last was delivered to ada"
        }
        own = await asyncpg.connect(server.url(name))
        placed = {row["number"] for row in await own.fetch("SELECT number FROM orders")}
        await own.close()
        assert set(answered) <= placed
        await until(lambda: _same(bills, placed))
    await control.close()


async def _same(bills: Any, placed: set[str]) -> bool:
    return sorted(await bills()) == sorted(placed)
