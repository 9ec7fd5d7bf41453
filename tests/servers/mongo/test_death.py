"""Nodes that are killed or stopped in the middle of writing. Others finish their work, and nothing old comes back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mainspring.bus.groups.position import record_key
from mainspring.log import ABSENT, Append, Batch, Bounds, Delete, Guard, Mark, Put, Receipt, Remove
from mainspring.log.engines.mongo import MongoEngine
from tests.support.fixtures.mongo import OpenEngine

VICTIM = Path(__file__).with_name("victim.py")
WRITES = ("events", "removals", "counters", "marks", "records", "group_offsets", "topic_configs", "applied")


@contextlib.contextmanager
def victims(address: str, sends: str, *steps: str) -> Iterator[subprocess.Popen[str]]:
    joined = f"{address}{'&' if '?' in address else '?'}takeover_ms=200"
    command = [sys.executable, str(VICTIM), joined, sends, *steps]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


async def all_lines(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    return (await asyncio.to_thread(process.stdout.read)).splitlines()


async def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return (await asyncio.to_thread(process.stdout.readline)).strip()


async def check_second(engine: MongoEngine, name: str) -> None:
    """Both commits of this victim are there, entirely."""
    await engine.commit([Batch([Guard("s", "none", ABSENT)])])  # knows everything now
    assert [found.offset for found in await engine.read(name, 0, 1, 10)] == [2, 4, 5]
    size = len(b'{"n":1}') + len(f"{name}-1")
    assert await engine.bounds(name) == [Bounds(0, 2, 5, 3, 3 * size)]
    assert [await value(engine, *place) for place in places(name)] == [
        b"2",
        None,
        b'{"topic":"x","partitions":2}',
        b'{"lastCommitted":2}',
    ]
    assert Mark(name, f"{name}-d", 0, 4, 1 << 40) in [mark async for mark in engine.marks()]


def places(name: str) -> list[tuple[str, str]]:
    return [("s", name), ("s", f"{name}-old"), ("topics", name), ("groups", record_key(name, "g", 0))]


async def value(engine: MongoEngine, space: str, key: str) -> bytes | None:
    record = await engine.get(space, key)
    return None if record is None else record.value


async def test_a_node_killed_at_any_write_leaves_a_commit_whole_or_none_of_it(
    address: str, open_engine: OpenEngine, database: Any
) -> None:
    survivor = await open_engine("takeover_ms=200")
    with victims(address, "SIGKILL", "journal", *WRITES) as process:
        lines = await all_lines(process)
    assert [text for text in lines if text.startswith("over")] == [f"over {name}" for name in ("journal", *WRITES)]
    assert {text.split()[1] for text in lines if text.startswith("acked")} <= set(WRITES)
    late = await open_engine("takeover_ms=200")
    for engine in (survivor, late):
        for name in WRITES:
            await check_second(engine, name)
        assert [found.offset for found in await engine.read("journal", 0, 1, 10)] == [1, 2, 3]
        assert [await value(engine, *place) for place in places("journal")] == [
            b"1",
            b"1",
            b'{"topic":"x"}',
            b'{"lastCommitted":1}',
        ]
    for name in WRITES:
        counter = database.counters.find_one({"_id": f"{name}:0"})
        assert (counter["nextOffset"], counter["events"]) == (5, 3)
        assert sorted(d["offset"] for d in database.events.find({"topic": name, "removed": {"$ne": True}})) == [2, 4, 5]
        assert database.group_offsets.find_one({"_id": f"{name}:0:g"})["lastCommitted"] == 2
    (receipt,) = await late.commit([Batch([Append("events", 0, "next", 1, b"1")])])
    assert isinstance(receipt, Receipt)
    assert receipt.offsets == ((0, 6, False),)


@pytest.mark.parametrize("write", ["events", "removals", "counters", "records", "applied"])
async def test_a_node_that_was_stopped_cannot_put_old_things_back(
    address: str, open_engine: OpenEngine, write: str
) -> None:
    survivor = await open_engine("takeover_ms=200")
    with victims(address, "SIGSTOP", write) as process:
        pid = int((await line(process)).split()[2])
        try:
            await stopped(pid)
            await check_second(survivor, write)  # it takes over
            batch = Batch([Remove(write, 0, below=3, offsets=(5,)), Delete("s", write), Put("s", f"{write}-old", b"3")])
            batch.put("topics", write, b'{"topic":"x","partitions":3}')
            batch.delete("groups", record_key(write, "g", 0))
            batch.append(Append(write, 0, "six", 6, b"6", dedupe=f"{write}-e", dedupe_until=9))
            (result,) = await survivor.commit([batch])
            assert isinstance(result, Receipt)
            await survivor.spaces()
        finally:
            os.kill(pid, signal.SIGCONT)
        rest = await all_lines(process)
        assert rest[-1] == f"over {write}"
    for engine in (survivor, await open_engine()):
        await engine.commit([Batch([Guard("s", "none", ABSENT)])])
        assert [found.offset for found in await engine.read(write, 0, 1, 10)] == [4, 6]
        (bounds,) = await engine.bounds(write)
        assert (bounds.head, bounds.tail, bounds.events) == (4, 6, 2)
        assert [await value(engine, *place) for place in places(write)] == [
            None,
            b"3",
            b'{"topic":"x","partitions":3}',
            None,
        ]
        assert [record.key async for record in engine.scan("groups")] == []


async def test_a_node_stopped_before_it_stores_its_commit_comes_behind_the_others(
    address: str, open_engine: OpenEngine
) -> None:
    survivor = await open_engine()
    with victims(address, "SIGSTOP", "journal") as process:
        pid = int((await line(process)).split()[2])
        try:
            await stopped(pid)
            (result,) = await survivor.commit(
                [Batch([Append("journal", 0, "faster", 1, b"1"), Put("s", "journal", b"9")])]
            )
            assert isinstance(result, Receipt)
            assert result.offsets == ((0, 4, False),)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert await all_lines(process) == ["acked journal", "over journal"]
    late = await open_engine()
    assert [found.id for found in await late.read("journal", 0, 1, 10)] == [
        "journal-2",
        "faster",
        "journal-4",
        "journal-5",
    ]
    assert await value(late, "s", "journal") == b"2"


async def stopped(pid: int) -> None:
    for _ in range(3000):
        status = Path(f"/proc/{pid}/stat").read_text()
        if status.rpartition(")")[2].split()[0] == "T":
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the victim never stopped")
