"""LogExport and import: from every engine into every engine, nothing different afterwards."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from mainspring.log import (
    Append,
    Batch,
    DamagedEvent,
    Delete,
    Engine,
    FormatError,
    Log,
    MemoryEngine,
    Put,
    Refused,
    Remove,
    SqliteEngine,
)
from mainspring.log.export_import import LogExport, import_lines
from tests.support.fixtures.log import EACH_ENGINE, ENGINES
from tests.support.log_file import damage_event


async def fill(engine: Engine) -> None:
    """A bit of everything: holes, an emptied partition, odd bytes, deleted records, marks."""
    log = Log(engine)
    await log.open()
    odd = [
        b"null",
        b" null",
        b'{"a" : 1.0, "a": 2}',
        b'"line\nbreak"',
        b"not json",
        b"",
        b"\xff\x00",
        b'"\xc3\xa9"',
        b"NaN",
    ]
    await log.commit(
        Batch(
            [
                Append("t", n % 2, f"id-{n}", 100 - n, payload, None if n % 3 else f"key\x00{n}é", headers)
                for n, (payload, headers) in enumerate(zip(odd * 2, [None, b"{}", b'{"h": "1"}'] * 6, strict=True))
            ]
        )
    )
    await log.commit(Batch([Append("gone", 3, f"id-{n}", n, b"1") for n in range(5)]))
    await log.commit(Batch([Append("big", 0, f"id-{n}", n, b"%d" % n) for n in range(2500)]))
    await log.commit(Batch([Append("t", 0, "once", 1, b"1", dedupe="d é", dedupe_until=500)]))
    await log.commit(Batch([Remove("gone", 3, below=6), Remove("t", 0, offsets=(2, 4)), Remove("t", 1, below=3)]))
    await log.commit(Batch([*(Put("s", f"{n:04}", odd[n % len(odd)]) for n in range(1200)), Put("u", "k/é", b"{}")]))
    await log.commit(Batch([Delete("s", "0000"), Put("s", "0001", b"newer")]))
    await log.close()


async def contents(engine: Engine) -> list[object]:
    found: list[object] = []
    for topic in await engine.topics():
        for bounds in await engine.bounds(topic):
            found += [topic, bounds, *await engine.read(topic, bounds.partition, 1, 10_000)]
    for space in await engine.spaces():
        found += [(space, record) async for record in engine.scan(space)]
    return [*found, *[mark async for mark in engine.marks()]]


async def exported(engine: Engine) -> list[bytes]:
    return [line async for line in LogExport(engine).lines()]


@pytest.mark.parametrize("target_name", EACH_ENGINE)
@pytest.mark.parametrize("source_name", EACH_ENGINE)
async def test_everything_arrives_as_it_left(source_name: str, target_name: str, tmp_path: Path) -> None:
    for place in ("source", "target"):
        (tmp_path / place).mkdir()
    source = ENGINES[source_name](tmp_path / "source")()
    await fill(source)
    await source.open()
    lines = await exported(source)
    target = ENGINES[target_name](tmp_path / "target")()
    await target.open()
    moved = await import_lines(lines, target)
    assert (moved.events, moved.records, moved.marks) == (2515, 1200, 1)
    assert await contents(target) == await contents(source)
    assert await exported(target) == [lines[0].replace(source.name.encode(), target.name.encode()), *lines[1:]]
    # and life goes on where it was: no offset and no version twice
    for engine in (source, target):
        (receipt,) = await engine.commit([Batch([Append("gone", 3, "x", 1, b"1"), Put("s", "0001", b"")])])
        assert receipt.offsets == ((3, 6, False),)  # type: ignore[union-attr]
        assert receipt.versions[0] > 1202  # type: ignore[union-attr]
    await source.close()
    await target.close()


async def test_each_line_is_one_json_object_with_payloads_one_can_read() -> None:
    engine = MemoryEngine()
    await fill(engine)
    lines = await exported(engine)
    objects = [msgspec.json.decode(line) for line in lines]
    assert objects[0] == {"kind": "log", "format": 1, "engine": "memory"}
    assert objects[-1].pop("sha256")
    assert objects[-1] == {"kind": "end", "events": 2515, "records": 1200, "marks": 1}
    assert {o["kind"] for o in objects} == {"log", "record", "mark", "event", "tail", "end"}
    assert {"kind": "tail", "topic": "gone", "partition": 3, "tail": 5} in objects
    big = [o for o in objects if o.get("topic") == "big" and o["kind"] == "event"]
    assert big[7] == {
        "kind": "event", "topic": "big", "partition": 0, "offset": 8, "id": "id-7", "ts": 7, "payload": 7,
    }  # fmt: skip


async def test_a_log_that_holds_something_takes_no_import() -> None:
    engine = MemoryEngine()
    await fill(engine)
    with pytest.raises(Refused, match="not empty"):
        await import_lines(await exported(engine), engine)


HEADER = b'{"kind":"log","format":1,"engine":"memory"}\n'
RECORD = b'{"kind":"record","space":"s","key":"k","version":7%b}\n'
EVENT = b'{"kind":"event","topic":"t","offset":%d,"payload":1}\n'


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([], "cut off"),
        ([HEADER], "cut off"),
        ([b"hello\n"], "line 1"),
        ([b'{"kind":"end"}\n'], "line 1"),
        ([b'{"kind":"log","format":2}\n'], "format 2"),
        ([HEADER, HEADER], "line 2"),
        ([HEADER, b'{"kind":"poem"}\n'], "poem"),
        ([HEADER, b'{"kind":"event","topic":"t","offset":1}\n'], "payload"),
        ([HEADER, b'{"kind":"event","topic":"t","offset":0,"payload":1}\n'], "offset"),
        ([HEADER, b'{"kind":"event","topic":"t","offset":1,"payload_b64":"!"}\n'], "base64"),
        ([HEADER, RECORD % b""], "value"),
        ([HEADER, RECORD % b',"value":1,"surprise":1'], "surprise"),
        ([HEADER, RECORD % b',"value":1,"topic":"t"'], "topic"),  # of another kind of line
        ([HEADER, RECORD % b',"value":1,"value_b64":"MQ=="'], "both"),
        ([HEADER, RECORD % b',"value":1', RECORD % b',"value":2'], "line 3.*twice"),
        ([HEADER, (RECORD % b',"value":1').replace(b"7", b"-1")], "version"),
        ([HEADER, b'{"kind":"event","topic":"t","partition":-1,"offset":1,"payload":1}\n'], "partition"),
        ([HEADER, EVENT % 2, EVENT % 2], "line 3.*offset 2"),
        ([HEADER, EVENT % 2, b'{"kind":"tail","topic":"t","partition":0,"tail":1}\n'], "line 3.*behind this tail"),
        ([HEADER, EVENT % 1, b'{"kind":"end","events":1,"sha256":"00"}\n'], "line 3.*checksum"),
        ([HEADER, b"[" * 100_000], "line 2"),
        ([HEADER, b'{"kind":"event","topic":"t","offset":1,"payload":%b}\n' % (b"[" * 9_999 + b"]" * 9_999)], "line 2"),
        ([HEADER, b'{"kind":"mark","topic":"t","dedupe":"d","partition":0,"offset":0,"until":1}\n'], "offset"),
        ([HEADER, b'{"kind":"end","events":1}\n'], "missing"),
        ([HEADER, b'{"kind":"end"}\n', b'{"kind":"end"}\n'], "line 3"),
    ],
)
async def test_what_is_no_export_is_refused_with_its_line(lines: list[bytes], why: str) -> None:
    with pytest.raises(FormatError, match=why):
        await import_lines(lines, MemoryEngine())


async def test_damage_ends_an_export_unless_it_may_be_left_out(tmp_path: Path) -> None:
    await fill(SqliteEngine(tmp_path / "log"))
    damage_event(tmp_path / "log", "id-77")
    with closing(sqlite3.connect(tmp_path / "log")) as connection:
        connection.execute("UPDATE records SET value = x'00' WHERE key = '0500'")
        connection.commit()
    engine = SqliteEngine(tmp_path / "log", read_only=True)
    await engine.open()
    export = LogExport(engine, skip_damaged=True)
    lines = [line async for line in export.lines()]
    assert len(export.moved.damaged) == 2
    assert await import_lines(lines, MemoryEngine()) == msgspec.structs.replace(export.moved, damaged=[])
    with closing(sqlite3.connect(tmp_path / "log")) as connection:
        connection.execute("DELETE FROM records WHERE key = '0500'")
        connection.commit()
    with pytest.raises(DamagedEvent):
        await exported(engine)
    await engine.close()
