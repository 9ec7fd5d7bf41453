"""What an acknowledgement means is asked of the servers again and again, not only at boot: real nodes, real servers.

An operator who demanded durable servers expects nodes to stop when a server comes back with other settings, and
everybody else to see it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg
import pytest

from tests.support.nats_server import NatsServer
from tests.support.postgres import running_postgres
from tests.support.processes import ServedNode, eventually

pytestmark = pytest.mark.servers

Weaken = Callable[[], None]


@contextmanager
def nats(place: Path) -> Iterator[tuple[str, Weaken]]:
    server = NatsServer(place / "nats")
    server.jetstream = "sync_interval: always"
    server.start()

    def weaken() -> None:
        server.stop()
        server.jetstream = 'sync_interval: "10s"'
        server.start()

    try:
        yield server.url("test", monitor=server.monitor), weaken
    finally:
        server.kill()


@contextmanager
def postgres(_: Path) -> Iterator[tuple[str, Weaken]]:
    with running_postgres() as server:

        async def no_fsync() -> None:
            sql = await asyncpg.connect(server.url("postgres"))
            await sql.execute("ALTER SYSTEM SET fsync = off")
            await sql.execute("SELECT pg_reload_conf()")
            await sql.close()

        yield server.url("postgres"), lambda: asyncio.run(no_fsync())


def is_durable(node: ServedNode) -> bool:
    return bool(node.ask("GET", "/nodes")[1]["engine"]["durable"])


@pytest.mark.parametrize("server", [nats, postgres])
def test_a_server_that_comes_back_with_less_ends_who_demands_more_and_is_shown_by_all(
    tmp_path: Path, server: Callable[[Path], contextmanager[tuple[str, Weaken]]]
) -> None:
    with server(tmp_path) as (address, weaken):
        strict, other = ServedNode(tmp_path, "strict", address, "--require-durable"), ServedNode(tmp_path, "b", address)
        with strict.process, other.process:
            assert strict.publish("orders", 1) == 201
            assert is_durable(other)
            weaken()
            assert strict.process.wait() == 1
            assert "the node ends: " in strict.process.errors()
            assert "start without --require-durable" in strict.process.errors()
            eventually(lambda: not is_durable(other), "the other node to say so")
            assert "could still be lost" in other.process.errors()
            assert other.publish("orders", 2) == 201
            strict.process.launch()
            assert strict.process.boot["data"]["reason"] == "not_durable"
