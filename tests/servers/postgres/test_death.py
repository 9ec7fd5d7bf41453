"""Nodes and servers that are killed or stopped in the middle of a commit: it happens entirely or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from mainspring.log import Append, Batch, Bounds, Mark, Receipt
from mainspring.log.engines.postgres import PostgresEngine
from tests.servers.postgres import victim
from tests.servers.postgres.conftest import OpenEngine
from tests.support.client_node import eventually
from tests.support.postgres import running_postgres

VICTIM = Path(__file__).with_name("victim.py")
WRITES = ("remove", "deletes", "records", "marks", "events", "commit")


@contextlib.contextmanager
def victims(address: str, sends: str, *steps: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(VICTIM), address, sends, *steps]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


async def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"


async def values(engine: PostgresEngine, name: str) -> list[bytes | None]:
    found = [await engine.get("s", key) for key in (name, f"{name}-old")]
    return [None if record is None else record.value for record in found]


async def test_a_node_killed_at_any_write_leaves_none_of_its_commit(address: str, open_engine: OpenEngine) -> None:
    survivor = await open_engine()
    with victims(address, "SIGKILL", *WRITES) as process:
        assert process.stdout is not None
        lines = (await asyncio.to_thread(process.stdout.read)).splitlines()
    assert [text for text in lines if text.startswith("over")] == [f"over {name}" for name in WRITES]
    assert not [text for text in lines if text.startswith("acked")]
    late = await open_engine()
    for engine in (survivor, late):
        for name in WRITES:
            assert [found.offset for found in await engine.read(name, 0, 1, 10)] == [1, 2, 3]
            assert await engine.bounds(name) == [Bounds(0, 1, 3, 3, 3 * len(f"1{name}-1"))]
            assert await values(engine, name) == [b"1", b"1"]
        assert [mark async for mark in engine.marks()] == []
    (receipt,) = await late.commit([Batch([Append("commit", 0, "next", 1, b"1")])])
    assert isinstance(receipt, Receipt)
    assert receipt.offsets == ((0, 4, False),)


async def test_a_node_that_stands_still_with_the_lock_loses_it_and_tries_again(
    address: str, open_engine: OpenEngine
) -> None:
    survivor = await open_engine()
    with victims(f"{address}&held_ms=300", "SIGSTOP", "commit") as process:
        assert process.stdout is not None
        pid = int((await asyncio.to_thread(process.stdout.readline)).split()[2])
        try:
            await eventually(lambda: stopped(pid))
            (receipt,) = await survivor.commit([Batch([Append("commit", 0, "other", 1, b"o")])])
            assert isinstance(receipt, Receipt)
            assert receipt.offsets == ((0, 4, False),)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert (await asyncio.to_thread(process.stdout.read)).splitlines() == ["acked commit", "over commit"]
    found = await survivor.read("commit", 0, 1, 10)
    assert [event.id for event in found] == ["commit-2", "other", "commit-4", "commit-5"]
    assert [mark async for mark in survivor.marks()] == [Mark("commit", "commit-d", 0, 5, 1 << 40)]


async def test_a_server_killed_at_any_write_has_the_commit_once_when_it_is_back() -> None:
    """`kill -9` of all its processes before the write is sent; a node goes on trying until the server answers."""
    with running_postgres() as server:
        at = ""
        restarts: list[asyncio.Task[None]] = []

        def step(write: str) -> None:
            nonlocal at
            if write == at:
                at = ""
                server.kill()
                restarts.append(asyncio.create_task(asyncio.to_thread(server.start)))

        engine = PostgresEngine(f"{server.url('postgres')}?patience_ms=60000", step=step)
        await engine.open()
        for name in WRITES:
            (receipt,) = await engine.commit([victim.first(name)])
            assert isinstance(receipt, Receipt)
            at = name
            (receipt,) = await engine.commit([victim.second(name)])
            assert isinstance(receipt, Receipt), receipt
            assert at == "", f"{name} was not written"
            assert receipt.offsets == ((0, 4, False), (0, 5, False))
        await asyncio.gather(*restarts)
        await engine.close()
        late = PostgresEngine(server.url("postgres"))
        await late.open()
        for name in WRITES:
            assert [event.id for event in await late.read(name, 0, 1, 10)] == [f"{name}-{n}" for n in (2, 4, 5)]
            assert await values(late, name) == [b"2", None]
        assert len([mark async for mark in late.marks()]) == len(WRITES)
        await late.close()
