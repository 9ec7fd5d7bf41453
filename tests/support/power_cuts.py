"""Power cuts without a machine: what a disk may hold after one, made from a record of what a node wrote.

`record` runs sequences of operations on real nodes in a process whose file operations are written down
(`file_recorder.c`). `Disk` plays such a record up to any point and makes the states in which a loss of power may leave
the files: what was not synced is there, is not, is there in part. `broken_promises` opens such a state as a node would
and compares it with what the log had acknowledged by then.

As a script it is the process that is recorded: `python -m tests.support.power_cuts FOLDER publish,ack beat,backup ...`.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import os
import random
import sqlite3
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from mainspring import App
from mainspring.bus import NewEvent
from mainspring.bus.schedules import Schedule
from mainspring.errors import MainspringError
from mainspring.log import (
    Append,
    Batch,
    Delete,
    Log,
    Put,
    Receipt,
    Remove,
    Result,
    SqliteEngine,
    StoredEvent,
    backup,
    check,
    log_file,
    upgrade,
)
from mainspring.node.core import Core
from mainspring.runs import Effect
from mainspring.settings import Settings
from tests.support.log_file import stored_events, write_rows
from tests.support.paths import ROOT

ACKS = "acks"
BEGINS = b'{"begins":'
PATIENCE_S = 60.0
PIECE = 512

# -- the process that is recorded


class RecordingEngine(SqliteEngine):
    """Writes down which batches it was given, and which of them it has acknowledged, before anybody is told."""

    def __init__(self, path: Path, acks: int) -> None:
        super().__init__(path)
        self.puts: Counter[str] = Counter()
        self._acks = acks
        self._number = itertools.count()

    def submit(self, batches: Sequence[Batch], done: Callable[[list[Result]], None]) -> None:
        numbers = [next(self._number) for _ in batches]
        for number, batch in zip(numbers, batches, strict=True):
            say(self._acks, {"asked": number, **_content(batch)})

        def decided(results: list[Result]) -> None:
            for number, batch, result in zip(numbers, batches, results, strict=True):
                if isinstance(result, Receipt):
                    say(self._acks, {"stored": number, "offsets": result.offsets, "versions": result.versions})
                    self.puts.update(each.space for each in batch.operations if isinstance(each, Put))
            done(results)

        super().submit(batches, decided)


def say(acks: int, line: dict[str, Any]) -> None:
    os.write(acks, msgspec.json.encode(line) + b"\n")


def _content(batch: Batch) -> dict[str, Any]:
    operations = batch.operations
    return {
        "appends": [(each.topic, each.partition, each.id) for each in operations if isinstance(each, Append)],
        "puts": [(each.space, each.key) for each in operations if isinstance(each, Put)],
        "deletes": [(each.space, each.key) for each in operations if isinstance(each, Delete)],
        "removes": [(each.topic, each.below, each.offsets) for each in operations if isinstance(each, Remove)],
    }


class Half(Effect[int]):
    n: int


async def halve(perform: Any) -> int:
    return int(await perform(Half(4))) + int(await perform(Half(8)))


def make_app() -> App:
    app = App("power")
    app.run(halve)

    @app.handles(Half)
    async def half(effect: Half, ctx: Any) -> int:
        return effect.n // 2

    @app.consumer("done")
    async def done(event: Any) -> None:
        """Acknowledges."""

    @app.consumer("again", backoff="1ms", max_attempts=3)
    async def again(event: Any) -> None:
        if event.attempt == 1:
            raise ValueError("once more")

    @app.consumer("dead", max_attempts=1)
    async def dead(event: Any) -> None:
        raise ValueError("never")

    @app.enzyme("/go")
    def go(signal: Any, target: Any, stage: Any) -> None:
        stage.add("/count", 1)

    return app


class Life:
    """One node in a folder, and the operations on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.acks = os.open(folder / ACKS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.engine = RecordingEngine(log_file(folder / "data"), self.acks)
        settings = Settings(data=str(folder / "data"), audit=False, metrics_interval_ms=0, drain_ms=2_000)
        self.core = Core(settings, make_app(), engine=self.engine)
        self.names = (f"{n:03}" for n in itertools.count())

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if condition():
                    return
                await asyncio.sleep(0.001)

    async def live(self, operations: Sequence[str]) -> None:
        await self.core.boot()
        for operation in operations:
            say(self.acks, {"begins": operation})
            await getattr(self, f"do_{operation}")()
        await self.core.drain()
        os.close(self.acks)

    async def publish_and_store(self, topic: str) -> None:
        before = self.engine.puts["groups"]
        await self.core.bus.publish(topic, b"1", id=next(self.names))
        await self.until(lambda: self.engine.puts["groups"] > before)

    async def do_publish(self) -> None:
        await self.core.bus.publish("t", b'{"n":1}', key="k", id=next(self.names))

    async def do_batch(self) -> None:
        await self.core.bus.publish_batch("t", [NewEvent(b'"%b"' % (b"%d" % n * 2_000), "k") for n in range(1, 6)])

    async def do_ack(self) -> None:
        await self.publish_and_store("done")

    async def do_nack(self) -> None:
        await self.publish_and_store("again")

    async def do_dead_letter(self) -> None:
        before = self.core.bus.counters.dlq
        await self.core.bus.publish("dead", b"1", id=next(self.names))
        await self.until(lambda: self.core.bus.counters.dlq > before)

    async def do_schedule(self) -> None:
        name = next(self.names)
        await self.core.bus.put_schedule(Schedule(name=name, topic="t", payload=msgspec.Raw(b"1"), every=86_400_000))

    async def do_compact(self) -> None:
        await self.core.log.commit(Batch([Remove("t", 0, offsets=(1, 3))]))

    async def do_retain(self) -> None:
        await self.core.log.trim("t", 0, 3)

    async def do_run_step(self) -> None:
        outcome = await self.core.runtime.start(halve, durable=True, id=next(self.names)).outcome()
        assert outcome is not None

    async def do_beat(self) -> None:
        lands = await self.core.kernel.ask("command", "Beat.Signal", {"signal": "/go"})
        assert lands is not None
        before = self.core.heartbeat.next_beat
        await self.until(lambda: self.core.heartbeat.next_beat > before or not self.core.heartbeat.waiting)

    async def do_backup(self) -> None:
        target = self.folder / f"backup-{next(self.names)}.sqlite3"
        await asyncio.to_thread(backup, self.engine.path, target)
        say(self.acks, {"whole": target.name})

    async def do_import(self) -> None:
        name = next(self.names)
        lines = self.folder / f"{name}.ndjson"
        await self._command("export", str(lines), "--data", str(self.folder / "data"))
        await self._command("import", str(lines), "--data", str(self.folder / f"import-{name}"))
        say(self.acks, {"whole": f"import-{name}/log.sqlite3"})

    async def _command(self, *words: str) -> None:
        from typer.testing import CliRunner

        from mainspring.cli.node.log import app

        done = await asyncio.to_thread(CliRunner().invoke, app, list(words))
        assert done.exit_code == 0, done.exception

    async def do_upgrade(self) -> None:
        """A log of format 1 is brought to this format, its events too."""
        folder = self.folder / f"old-{next(self.names)}"
        folder.mkdir()
        path = log_file(folder)
        write_rows(path, 1, [StoredEvent("t", 0, offset, f"id-{offset}", 5, b"1") for offset in range(1, 4)])
        descriptor = os.open(self.folder, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        say(self.acks, {"whole": f"{folder.name}/{path.name}"})
        upgrade(path)


OPERATIONS = tuple(name.removeprefix("do_") for name in vars(Life) if name.startswith("do_"))


def sequences(longest: int = 3) -> Iterator[tuple[str, ...]]:
    """Every sequence of up to so many operations."""
    for length in range(1, longest + 1):
        yield from itertools.product(OPERATIONS, repeat=length)


def main(folder: Path, chosen: Sequence[str]) -> None:
    for number, text in enumerate(chosen):
        place = folder / f"{number:05}"
        place.mkdir()
        asyncio.run(Life(place).live(text.split(",")))


def build_recorder(folder: Path) -> Path:
    """The library that is preloaded; needs a C compiler."""
    made = folder / "file_recorder.so"
    source = ROOT / "tests" / "support" / "file_recorder.c"
    command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(made), str(source), "-ldl", "-lpthread"]
    subprocess.run(command, check=True, capture_output=True)
    return made


def record(folder: Path, chosen: Sequence[Sequence[str]], recorder: Path) -> list[list[Entry]]:
    """Run the sequences; what each did to its files."""
    lives, trace = folder / "lives", folder / "trace"
    lives.mkdir()
    env = {**os.environ, "LD_PRELOAD": str(recorder), "POWER_CUTS_TRACE": str(trace), "POWER_CUTS_FOLDER": str(lives)}
    command = [sys.executable, "-m", "tests.support.power_cuts", str(lives), *(",".join(each) for each in chosen)]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: list[list[Entry]] = [[] for _ in chosen]
    for entry in read_trace(trace.read_bytes()):
        number, _, rest = os.path.relpath(entry.path, lives).partition("/")
        if number.isdigit():
            entry.path = rest
            if entry.kind == "r":
                entry.data = os.path.relpath(os.fsdecode(entry.data), lives / number).encode()
            found[int(number)].append(entry)
    return found


# -- the record, and the disk


@dataclass
class Entry:
    """`c` create, `w` write, `t` truncate (offset is the size), `s` sync, `f` failed sync, `u` unlink, `r` rename,
    `m` mkdir."""

    kind: str
    path: str
    offset: int
    data: bytes


def read_trace(data: bytes) -> Iterator[Entry]:
    at = 0
    while at < len(data):
        kind, length, offset, size = struct.unpack_from("<cHqI", data, at)
        at += 15
        path = os.fsdecode(data[at : at + length])
        at += length
        yield Entry(kind.decode(), path, offset, data[at : at + size])
        at += size


@dataclass(eq=False)
class File:
    """Its bytes as of the last sync, and what came since."""

    synced: bytearray = field(default_factory=bytearray)
    since: list[Entry] = field(default_factory=list)

    def content(self, since: Sequence[Entry]) -> bytes:
        held = bytearray(self.synced)
        for entry in since:
            end = entry.offset + len(entry.data)
            if entry.kind == "t":
                del held[entry.offset :]
                end = entry.offset
            if len(held) < end:
                held += bytes(end - len(held))
            held[entry.offset : entry.offset + len(entry.data)] = entry.data
        return bytes(held)


Kept = Callable[[list[Entry]], list[Entry]]


class Disk:
    """What one life has done so far."""

    def __init__(self) -> None:
        self.names: dict[str, File] = {}
        self.synced_names: dict[str, File] = {}
        self.folders: set[str] = set()
        self.synced_folders: set[str] = set()
        self.told = b""

    def play(self, entry: Entry) -> None:
        path = entry.path
        if path == ACKS:
            self.told += entry.data if entry.kind == "w" else b""
        elif entry.kind == "m":
            self.folders.add(path)
        elif entry.kind == "c":
            self.names[path] = File()
        elif entry.kind == "u":
            self.names.pop(path, None)
        elif entry.kind == "r":
            self.names[os.fsdecode(entry.data)] = self.names.pop(path)
        elif entry.kind == "s":
            self._sync(path)
        elif entry.kind == "f":  # the kernel has let go of it, and no later sync brings it back
            self.names[path].since.clear()
        elif path in self.names:
            self.names[path].since.append(entry)

    def _sync(self, path: str) -> None:
        if path in self.names:
            held = self.names[path]
            held.synced = bytearray(held.content(held.since))
            held.since.clear()
            return
        inside = {name for name in {*self.names, *self.synced_names} if os.path.dirname(name) == path}
        for name in inside:
            self.synced_names.pop(name, None)
        self.synced_names.update({name: self.names[name] for name in inside if name in self.names})
        self.synced_folders |= {name for name in self.folders if os.path.dirname(name) == path}

    def state(self, kept: Kept, *, names_kept: bool) -> dict[str, bytes]:
        """The files after a loss of power."""
        names, folders = (self.names, self.folders) if names_kept else (self.synced_names, self.synced_folders)
        return {
            name: held.content(kept(held.since))
            for name, held in names.items()
            if not name.endswith(("-shm", ".lock")) and _is_reachable(name, folders)
        }


def _is_reachable(name: str, folders: set[str]) -> bool:
    parent = os.path.dirname(name)
    return not parent or (parent in folders and _is_reachable(parent, folders))


def _torn(since: list[Entry]) -> list[Entry]:
    """The last write only in part."""
    if not since or since[-1].kind != "w":
        return since
    last = since[-1]
    return [*since[:-1], Entry("w", last.path, last.offset, last.data[: len(last.data) // 2])]


def _some(chance: random.Random) -> Kept:
    """Any of the pieces in which a disk writes, in any order."""

    def kept(since: list[Entry]) -> list[Entry]:
        pieces: list[Entry] = []
        for entry in since:
            if entry.kind != "w":
                pieces.append(entry)
                continue
            at = 0
            while at < len(entry.data):
                end = min(len(entry.data), at + PIECE - (entry.offset + at) % PIECE)
                pieces.append(Entry("w", entry.path, entry.offset + at, entry.data[at:end]))
                at = end
        sectors = {each.offset // PIECE: chance.random() < 0.5 for each in pieces if each.kind == "w"}
        return [each for each in pieces if each.kind != "w" or sectors[each.offset // PIECE]]

    return kept


def states(entries: Sequence[Entry], chance: random.Random, begun: int = 0) -> Iterator[tuple[dict[str, bytes], bytes]]:
    """Every different state that a loss of power may leave, with what was acknowledged by then.

    `begun`: only from where so many operations have begun. What was before is what shorter sequences leave.
    """
    disk, seen = Disk(), set()
    for entry, following in itertools.zip_longest(entries, entries[1:]):
        disk.play(entry)
        at_edge = following is None or following.kind in "sur" or entry.kind in "sur" or entry.path == ACKS
        if not at_edge or (following is not None and following.path == ACKS):
            continue
        if disk.told.count(BEGINS) < begun:
            continue
        ways: list[Kept] = [lambda _: [], list, _torn, _some(chance), _some(chance)]
        for kept, names_kept in itertools.product(ways, (True, False)):
            files = disk.state(kept, names_kept=names_kept)
            digest = hashlib.sha256(disk.told)
            for name, content in sorted(files.items()):
                digest.update(name.encode() + b"\0" + hashlib.sha256(content).digest())
            if digest.digest() not in seen:
                seen.add(digest.digest())
                yield files, disk.told


# -- promises


def broken_promises(files: dict[str, bytes], told: bytes, folder: Path) -> list[str]:
    """Put the files into an empty folder, open them as a node does, and compare."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(0o600)
        path.write_bytes(content)
    lines = [json.loads(line) for line in told.splitlines()]
    found = [
        f"{each['whole']}: {why}" for each in lines if "whole" in each for why in _not_whole(folder / each["whole"])
    ]
    return found + _not_kept(log_file(folder / "data"), lines)


def _opened(path: Path) -> str:
    async def open_and_close() -> None:
        log = Log(SqliteEngine(path))
        await log.open()
        await log.close()

    try:
        asyncio.run(open_and_close())
    except MainspringError as error:
        return str(error)
    return ""


def _not_whole(path: Path) -> list[str]:
    if not path.exists():
        return ["it is not there"]
    refused = _opened(path)
    return [refused] if refused else [problem.detail for problem in check(path).problems]


def _not_kept(path: Path, lines: list[dict[str, Any]]) -> list[str]:
    asked = {each["asked"]: each for each in lines if "asked" in each}
    stored = {each["stored"]: each for each in lines if "stored" in each}
    if not path.exists() and not stored and not path.with_name(path.name + "-wal").exists():
        return []
    refused = _opened(path)
    if refused:
        return [refused]
    found = [problem.detail for problem in check(path).problems]
    events = {(event.topic, event.partition, event.offset): event.id for event in stored_events(path)}
    with closing(sqlite3.connect(path)) as connection:
        records = {(s, k): v for s, k, v in connection.execute("SELECT space, key, version FROM records").fetchall()}
    removed: dict[str, set[int]] = {}
    for each in asked.values():
        for topic, below, offsets in each["removes"]:
            removed.setdefault(topic, set()).update(range(1, below), offsets)
    for number, receipt in stored.items():
        for (topic, _, id), (partition, offset, duplicate) in zip(
            asked[number]["appends"], receipt["offsets"], strict=True
        ):
            gone = offset in removed.get(topic, ()) or topic.endswith(".DLQ")
            if not duplicate and not gone and events.get((topic, partition, offset)) != id:
                found.append(f"offset {offset} of {topic} was acknowledged as {id}")
    ids = Counter(events.values())
    for number in asked.keys() - stored.keys():
        there = [ids[id] for _, _, id in asked[number]["appends"]]
        if any(there) and not all(there):
            found.append(f"batch {number} is there in part")
    return found + _lost_records(asked, stored, records)


def _lost_records(
    asked: dict[int, dict[str, Any]], stored: dict[int, dict[str, Any]], records: dict[tuple[str, str], int]
) -> list[str]:
    expected: dict[tuple[str, str], int] = {}
    for number in sorted(stored):
        for place, version in zip(asked[number]["puts"], stored[number]["versions"], strict=True):
            expected[tuple(place)] = version
        for place in asked[number]["deletes"]:
            expected.pop(tuple(place), None)
    undecided = {tuple(place) for n in asked.keys() - stored.keys() for place in asked[n]["deletes"]}
    return [
        f"record {place} was acknowledged with version {version}, and has {records.get(place, 'none')}"
        for place, version in expected.items()
        if place not in undecided and records.get(place, 0) < version
    ]


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
