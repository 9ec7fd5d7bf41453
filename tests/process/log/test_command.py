"""`mainspring log ...` as a person uses it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from mainspring.cli.node.log import FOUND_DAMAGE, app
from mainspring.errors import MainspringError
from mainspring.log import Append, Batch, Log, Put, Remove, SqliteEngine, log_file
from tests.support.log_file import damage_event

DONE, FAILED = 0, 1


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory with a log, and a working directory without settings."""
    monkeypatch.chdir(tmp_path)
    for name in ("MAINSPRING_ENGINE", "MAINSPRING_DATA", "MAINSPRING_CONFIG"):
        monkeypatch.delenv(name, raising=False)

    async def fill() -> None:
        log = Log(SqliteEngine(log_file(tmp_path / "data")))
        await log.open()
        await log.commit(Batch([Append("orders", n % 2, f"id-{n}", n, b'{"n":%d}' % n) for n in range(10)]))
        await log.commit(Batch([Put("memory", "/g", b"{}"), Remove("orders", 0, below=3)]))
        await log.close()

    asyncio.run(fill())
    return tmp_path / "data"


def run(*words: object, input: bytes | None = None) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], input=input)


def damage(data: Path) -> None:
    damage_event(log_file(data), "id-7", lambda payload: payload[:-2] + b" }")


def test_check_of_a_sound_log(data: Path) -> None:
    result = run("check", "--data", data)
    assert result.exit_code == DONE
    assert "8 events" in result.stdout
    assert result.stdout.endswith("sound\n")


def test_check_of_a_damaged_log_says_where_and_has_its_own_exit_code(data: Path) -> None:
    damage(data)
    result = run("check", "--data", data, "--json")
    assert result.exit_code == FOUND_DAMAGE
    report = json.loads(result.stdout)
    assert report["ok"] is False
    assert report["problems"][0] == {
        "kind": "event", "where": "orders partition 1 offset 4", "detail": "the checksum does not fit",
    }  # fmt: skip
    assert "orders partition 1 offset 4" in run("check", "--data", data).stdout


def test_stats_for_people_and_programs(data: Path) -> None:
    result = run("stats", "--data", data)
    assert result.exit_code == DONE
    assert "orders" in result.stdout
    assert "memory" in result.stdout
    found = json.loads(run("stats", "--data", data, "--json").stdout)
    assert found["topics"][0]["events"] == 8
    assert found["topics"][0]["partitions"][0] == {"partition": 0, "head": 3, "tail": 5, "events": 3, "bytes": 33}
    assert found["spaces"] == [{"space": "memory", "records": 1, "bytes": 4, "damaged": 0}]
    assert found["file_bytes"] > 0


def test_export_and_import_make_the_same_log_again(data: Path, tmp_path: Path) -> None:
    whole = run("export", "--data", data)
    assert whole.exit_code == DONE
    assert run("export", tmp_path / "out.ndjson", "--data", data, "--json").exit_code == DONE
    assert (tmp_path / "out.ndjson").read_bytes() == whole.stdout_bytes
    result = run("import", tmp_path / "out.ndjson", "--data", tmp_path / "other", "--json")
    assert result.exit_code == DONE
    assert json.loads(result.stdout) == {"events": 8, "records": 1, "marks": 0, "damaged": []}
    assert sorted(file.name for file in (tmp_path / "other").iterdir()) == ["log.sqlite3"]
    assert run("export", "--data", tmp_path / "other").stdout_bytes == whole.stdout_bytes
    assert run("import", "--data", tmp_path / "third", input=whole.stdout_bytes).exit_code == DONE
    assert run("check", "--data", tmp_path / "third").exit_code == DONE


def test_an_import_that_fails_leaves_no_log(data: Path, tmp_path: Path) -> None:
    lines = run("export", "--data", data).stdout_bytes.splitlines(keepends=True)
    result = run("import", "--data", tmp_path / "other", input=b"".join(lines[:-1]))
    assert isinstance(result.exception, MainspringError)
    assert "cut off" in result.exception.message
    assert list((tmp_path / "other").iterdir()) == []


RECORD = b'{"kind":"record","space":"%b","key":"%b","version":1,"value":%b}\n'
EVENT = b'{"kind":"event","topic":"%b","partition":0,"offset":1,"id":"i","ts":1,%b}\n'


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (RECORD % (b"topics", b"orders", b'"garbage"'), "a JSON object"),
        (RECORD % (b"topics", b"orders", b'{"topic":"orders","partitions":-4}'), "partitions"),
        (RECORD % (b"topics", b"orders", b'{"topic":"payroll","partitions":1}'), "another topic"),
        (RECORD % (b"schemas", b"orders|0001", b'{"a":1}'), "`topic`"),
        (RECORD % (b"schedules", b"named/s", b'{"name":"s"}'), "`topic`"),
        (RECORD % (b"schedules", b"delayed/0001794850392099/x", b"[1]"), "Expected `object`"),
        (RECORD % (b"runs", b"r", b"7"), "Expected `object`"),
        (EVENT % (b"a b\\n", b'"payload":1'), "cannot name a topic"),
        (EVENT % (b"orders", b'"payload_b64":"e3s="'), "not JSON"),
    ],
)
def test_an_import_refuses_what_no_node_could_read(line: bytes, why: str, tmp_path: Path) -> None:
    counts = b'"events":1,"records":0' if b'"event"' in line else b'"events":0,"records":1'
    lines = b'{"kind":"log","format":1,"engine":"sqlite"}\n' + line + b'{"kind":"end",%b,"marks":0}\n' % counts
    result = run("import", "--data", tmp_path / "other", input=lines)
    assert isinstance(result.exception, MainspringError)
    assert "line 2 of the export does not fit: no node could read it" in result.exception.message
    assert why in result.exception.message
    assert list((tmp_path / "other").iterdir()) == []


def test_nothing_is_overwritten(data: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.write_text("precious")
    for words in (["export", there], ["backup", there], ["import", "-"]):
        result = run(*words, "--data", data, input=b"")
        assert isinstance(result.exception, MainspringError)
        assert result.exception.remedy
    assert there.read_text() == "precious"


def test_a_backup_is_a_log(data: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy" / "log.sqlite3"
    copy.parent.mkdir()
    result = run("backup", copy, "--data", data)
    assert result.exit_code == DONE
    assert run("check", "--data", copy.parent).exit_code == DONE
    assert run("export", "--data", copy.parent).stdout_bytes == run("export", "--data", data).stdout_bytes


def test_damage_stops_an_export_unless_it_may_be_left_out(data: Path, tmp_path: Path) -> None:
    damage(data)
    result = run("export", tmp_path / "a", "--data", data)
    assert isinstance(result.exception, MainspringError)
    assert result.exception.code == "damaged_event"
    result = run("export", tmp_path / "b", "--data", data, "--skip-damaged")
    assert result.exit_code == FOUND_DAMAGE
    assert "left out" in result.stderr


@pytest.mark.parametrize("command", ["check", "stats", "export"])
def test_without_a_log_the_remedy_is_named(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(command, "--data", tmp_path / "nothing")
    assert isinstance(result.exception, MainspringError)
    assert "--data" in result.exception.remedy
    assert list(tmp_path.iterdir()) == []


def test_all_of_it_works_beside_a_node_that_serves(data: Path, tmp_path: Path) -> None:
    async def serving() -> None:
        log = Log(SqliteEngine(log_file(data)))
        await log.open()
        await log.commit(Batch([Append("orders", 0, "late", 1, b"1")]))
        for words in (["check"], ["stats"], ["export"], ["backup", tmp_path / "copy"]):
            result = await asyncio.to_thread(run, *words, "--data", data)
            assert result.exit_code == DONE, (words, result.exception)
        await log.close()

    asyncio.run(serving())
