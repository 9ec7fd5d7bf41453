"""What somebody with `uvicorn --workers 3` or gunicorn expects of an app in its lifespan: it works in every worker.

The first process on a data directory is the node and the others are its clients, found by themselves. When it goes,
also by `kill -9`, another one takes over, nothing that was acknowledged is lost, and the rest goes on.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from mainspring import App
from mainspring.bus.access import new_token
from mainspring.errors import BootError
from tests.support.nats_server import free_port
from tests.support.processes import eventually
from tests.support.serving import PATIENCE_S, Serving, clean_environment

PROGRAM = """
import os

from fastapi import FastAPI

from mainspring import App, Context, Event

shop = App("shop")
api = FastAPI(lifespan=shop.lifespan)


@shop.command("Order.Place")
async def place(data: dict, ctx: Context) -> int:
    await ctx.publish("orders", data["sku"])
    return os.getpid()


@shop.consumer("orders")
async def bill(event: Event[str]) -> None:
    event.publish("bills", event.payload)


@shop.task
async def mail(to: str) -> int:
    return os.getpid()


@api.post("/orders/{sku}")
async def order(sku: str) -> dict:
    return {"node": await shop.command("Order.Place", {"sku": sku}), "worker": os.getpid()}


@api.post("/mails/{to}")
def send(to: str) -> dict:
    shop.publish("asked", to)
    handle = mail.enqueue(to)
    return {"node": handle.result(timeout=20), "worker": os.getpid()}


@api.get("/bills")
async def bills() -> list[str]:
    found = []
    async for event in shop.follow("bills", since="beginning"):
        found.append(event.payload)
        if event.payload == "last":
            return found
"""


SHOP = """
import os
from mainspring import App
app = App("shop")
@app.command("Order.Place")
async def place(data: dict, ctx) -> str:
    return f"{os.getpid()}"
"""


UVICORN = ("uvicorn", "web:api", "--log-level", "warning", "--port")
GUNICORN = ("gunicorn", "web:api", "--no-control-socket", "--preload", "-k", "asgi", "--bind")


@contextmanager
def served(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    with open(folder / "stderr.txt", "wb") as errors:
        server = subprocess.Popen(
            [sys.executable, "-m", *arguments], cwd=folder, env=clean_environment(), stderr=errors
        )
    try:
        yield server
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            server.kill()
            raise


def ask(method: str, url: str) -> Any:
    """On a connection of its own, so that any worker may answer; None while none does."""
    try:
        answer = httpx.request(method, url, timeout=PATIENCE_S)
    except httpx.TransportError:
        return None
    return answer.json() if answer.status_code == 200 else None


@pytest.mark.parametrize("command", [UVICORN, GUNICORN], ids=["uvicorn", "gunicorn"])
def test_every_worker_works_and_one_takes_over(tmp_path: Path, command: tuple[str, ...]) -> None:
    """With gunicorn the program is imported before the workers are forked."""
    (tmp_path / "web.py").write_text(PROGRAM)
    url = f"http://127.0.0.1:{(port := free_port())}"
    with served(tmp_path, *command, f"127.0.0.1:{port}" if command == GUNICORN else f"{port}", "--workers", "3"):
        eventually(lambda: ask("POST", f"{url}/orders/first"), "an answer")
        answers: list[dict[str, int]] = []

        def all_workers() -> bool:
            answers.append(ask("POST", f"{url}/orders/o-{len(answers)}"))
            return len({each["worker"] for each in answers if each}) >= 3

        eventually(all_workers, "answers of three workers")
        (node,) = {each["node"] for each in answers if each}
        assert ask("POST", f"{url}/mails/ada")["node"] == node
        placed = {f"o-{number}" for number, each in enumerate(answers) if each}

        os.kill(node, signal.SIGKILL)
        taken = eventually(lambda: ask("POST", f"{url}/orders/after"), "an answer after the node was killed")
        assert taken["node"] != node
        eventually(lambda: ask("POST", f"{url}/mails/bob"), "a task after the node was killed")
        eventually(lambda: ask("POST", f"{url}/orders/last"), "the last order")
        billed = eventually(lambda: ask("GET", f"{url}/bills"), "the bills")
        assert placed | {"first", "after", "last"} <= set(billed)
    assert "asked to stop" not in (tmp_path / "stderr.txt").read_text()  # nobody did: a node went, and another came


def test_one_worker_leaves_no_socket_behind(tmp_path: Path) -> None:
    (tmp_path / "web.py").write_text(PROGRAM)
    url = f"http://127.0.0.1:{(port := free_port())}"
    with served(tmp_path, *UVICORN, str(port)):
        eventually(lambda: ask("POST", f"{url}/orders/first"), "an answer")
        assert not list(tmp_path.glob("data/*.sock"))
    assert not list(tmp_path.glob("data/node.*"))


async def _until(condition: Any) -> Any:
    async with asyncio.timeout(PATIENCE_S):
        while not (found := await condition()):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return found


def _app(name: str = "shop") -> App:
    app = App(name)

    @app.command("Order.Place")
    async def place(data: dict[str, Any], ctx: Any) -> str:
        return f"{os.getpid()}"

    return app


async def test_an_app_is_a_client_of_a_node_that_serves_its_data_already(tmp_path: Path) -> None:
    """`mainspring serve` is the node; a web server on the same data uses it."""
    (tmp_path / "shop.py").write_text(SHOP)
    with Serving("shop:app", folder=tmp_path, engine="sqlite", env={"PYTHONPATH": str(tmp_path)}) as node:
        app = _app()
        async with app.running(data=tmp_path / "data"):
            assert node.process is not None
            assert await app.command("Order.Place", {}) == f"{node.process.pid}"
            following = app.follow("orders", since="beginning")
            assert await app.publish("orders", 1) == 1
            assert (await anext(following)).payload == 1
            node.kill()

            async def taken_over() -> bool:
                try:
                    return bool(await app.command("Order.Place", {}) == f"{os.getpid()}")
                except Exception:
                    return False

            await _until(taken_over)
            assert await app.publish("orders", 2) == 2
            assert (await anext(following)).payload == 2  # what was followed through the client goes on
            await following.aclose()  # type: ignore[attr-defined]


async def test_two_apps_in_one_process_share_the_data(tmp_path: Path) -> None:
    first, second = _app(), _app()
    async with first.running(data=tmp_path), second.running(data=tmp_path):
        assert await second.publish("orders", 1) == 1
        assert await first.publish("orders", 2) == 2


async def test_data_that_is_in_use_by_something_else_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.node.running.PATIENCE_S", 0.5)
    holder = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", _HOLD, str(tmp_path / "log.sqlite3.lock")], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(BootError, match="in use by process"):
            async with _app().running(data=tmp_path):
                pass
    finally:
        holder.kill()
        holder.wait()


_HOLD = """
import fcntl, sys, time
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(600)
"""


async def test_who_comes_through_the_private_socket_needs_no_token(tmp_path: Path) -> None:
    """It is for the node's own user alone; on the port a token is needed as ever."""
    line = new_token("ada", ["publish:orders"], b"\0" * 32)[1].line()
    port = free_port()
    first, second = _app(), _app()
    async with first.running(data=tmp_path, tokens=(line,), port=port), second.running(data=tmp_path, tokens=(line,)):
        assert await second.command("Order.Place", {}) == f"{os.getpid()}"
        assert (tmp_path / "node.sock").stat().st_mode & 0o077 == 0
        async with httpx.AsyncClient() as browser:
            assert (await browser.get(f"http://127.0.0.1:{port}/topics")).status_code == 401
