"""`kill -9` under load, again and again: nothing acknowledged may be lost, changed or given a second offset.

MAINSPRING_TEST_CRASH_ROUNDS sets the number of kills.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from mainspring.log import Log, SqliteEngine
from mainspring.log.engines.sqlite.check import check
from tests.support.paths import ROOT

ROUNDS = int(os.environ.get("MAINSPRING_TEST_CRASH_ROUNDS", "25"))
ROUNDS_PER_LOG = 25  # each round looks at everything the rounds before it left
VICTIM = ROOT / "tests" / "support" / "crash_writer.py"


class Ledger:
    """What was acknowledged in all rounds."""

    def __init__(self) -> None:
        self.events: dict[tuple[str, int, int], tuple[str, int]] = {}
        self.offsets: dict[str, tuple[str, int, int]] = {}
        self.records: dict[str, tuple[int, bytes]] = {}
        self.highest_version = 0

    def note(self, line: str) -> None:
        kind, *words = line.split(" ")
        if kind == "record":
            self.records[words[0]] = (int(words[1]), words[2].encode())
            self.highest_version = max(self.highest_version, int(words[1]))
            return
        topic, partition, offset, id, crc = words
        place = (topic, int(partition), int(offset))
        assert place not in self.events, f"{place} was given to {self.events[place][0]} and to {id}"
        assert id not in self.offsets, f"{id} got {self.offsets[id]} and {place}"
        self.events[place] = (id, int(crc))
        self.offsets[id] = place


def round_of_load(path: Path, seed: int, ledger: Ledger) -> None:
    with subprocess.Popen([sys.executable, VICTIM, path, str(seed)], stdout=subprocess.PIPE) as victim:
        assert victim.stdout is not None
        assert victim.stdout.readline() == b"ready\n"
        wanted = random.Random(seed).randrange(1, 2000)
        lines = [victim.stdout.readline() for _ in range(wanted)]
        victim.send_signal(signal.SIGKILL)
        lines += victim.stdout.readlines()
        victim.wait()
    for line in lines:
        if line.endswith(b"\n"):
            ledger.note(line.decode().rstrip())


async def look(path: Path, ledger: Ledger) -> None:
    log = Log(SqliteEngine(path))
    await log.open()
    found: dict[tuple[str, int, int], tuple[str, int]] = {}
    heads: dict[tuple[str, int], int] = {}
    for topic in await log.topics():
        for bounds in await log.bounds(topic):
            heads[topic, bounds.partition] = bounds.head
            start = 1
            while page := await log.read(topic, bounds.partition, start, 1000):
                for event in page:
                    found[topic, bounds.partition, event.offset] = (event.id, zlib.crc32(event.payload))
                start = page[-1].offset + 1
            last = max((o for t, p, o in ledger.events if (t, p) == (topic, bounds.partition)), default=0)
            assert bounds.tail >= last
    for place, (id, crc) in ledger.events.items():
        if place[2] >= heads[place[:2]]:
            assert found[place] == (id, crc)
    ids = [id for id, _ in found.values()]
    assert len(ids) == len(set(ids)), "an event was stored twice"
    records = {record.key: (record.version, record.value) async for record in log.scan("s")}
    for key, acknowledged in ledger.records.items():
        assert records[key] == acknowledged
    await log.close()
    report = check(path)
    assert report.problems == []


@pytest.mark.parametrize("first", range(0, ROUNDS, ROUNDS_PER_LOG))
def test_nothing_acknowledged_is_lost_changed_or_moved_by_kill_9(tmp_path: Path, first: int) -> None:
    path = tmp_path / "log.sqlite3"
    ledger = Ledger()
    for seed in range(first, min(ROUNDS, first + ROUNDS_PER_LOG)):
        round_of_load(path, seed, ledger)
        asyncio.run(look(path, ledger))
    assert ledger.events
