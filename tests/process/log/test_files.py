"""The files of a node: for its owner alone, durable in their folders, and noticed when they are removed or exchanged.

A user of Kafka, NATS or PostgreSQL expects that a server whose files were deleted under it stops and says so, and that
other users of the machine cannot read what it stores.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import stat
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mainspring import App
from mainspring.bus import BusError
from mainspring.cli.node.log import app
from mainspring.kernel.blobs import Blob, BlobStore
from mainspring.log import Append, Batch, Log, LogDamaged, LogGone, Put, SqliteEngine, backup, log_file
from mainspring.log.engines.sqlite import files
from mainspring.node.core import Core
from mainspring.private_files import make_private_folder
from mainspring.server.health import NodeParts, readiness
from mainspring.settings import Settings
from tests.support.serving import Serving

DATABASE = "log.sqlite3"


def publish(node: Serving, payload: Any = 1) -> dict[str, Any]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{node.port}/topics/orders/events",
        data=json.dumps({"payload": payload}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return dict(json.load(answer))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def wide_modes(folder: Path) -> dict[str, str]:
    """What other users could use; sockets are looked at elsewhere."""
    found = [folder, *folder.rglob("*")]
    return {str(path): oct(mode(path)) for path in found if mode(path) & 0o077 and not path.is_symlink()}


@pytest.fixture(params=[0, 0o022], ids=["umask 0", "umask 022"])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


class TestModes:
    def test_what_a_node_writes_is_for_its_owner_alone(self, umask: int, tmp_path: Path) -> None:
        with Serving(folder=tmp_path, engine="sqlite") as node:
            publish(node)
            data = tmp_path / "data"
            assert {path.name for path in data.iterdir()} >= {DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm"}
            assert wide_modes(data) == {}
            assert mode(data) == 0o700
            assert mode(data / DATABASE) == 0o600

    def test_so_are_copies_of_the_log(self, umask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        asyncio.run(stored(log_file(tmp_path / "data")))
        for words in (
            ["backup", "copy.sqlite3", "--data", "data"],
            ["export", "lines.ndjson", "--data", "data"],
            ["import", "lines.ndjson", "--data", "deep/er/other"],
        ):
            assert CliRunner().invoke(app, words).exit_code == 0
        os.chmod(tmp_path, 0o700)
        assert wide_modes(tmp_path) == {}

    def test_and_blobs(self, umask: int, tmp_path: Path) -> None:
        pointer = BlobStore(tmp_path / "data" / "blobs", lambda: "x").store(Blob(b"secret"), 0)
        assert mode(Path(pointer.path)) == 0o600
        assert wide_modes(tmp_path / "data") == {}

    def test_what_was_wider_is_narrowed_and_that_is_said(self, tmp_path: Path) -> None:
        data = tmp_path / "data"
        asyncio.run(stored(log_file(data)))
        os.chmod(data, 0o755)
        os.chmod(data / DATABASE, 0o644)
        with Serving(folder=tmp_path, engine="sqlite") as node:
            assert wide_modes(data) == {}
            assert f"{data} could be read by other users (mode 755); its mode is now 700" in node.errors()
            assert f"{data / DATABASE} could be read by other users (mode 644)" in node.errors()

    def test_the_unit_of_the_documentation_says_so_too(self) -> None:
        page = (Path(__file__).parents[3] / "docs" / "how-to" / "deploy.md").read_text()
        assert "UMask=0077" in page
        assert "StateDirectoryMode=0700" in page


async def stored(path: Path, count: int = 3) -> None:
    log = Log(SqliteEngine(path))
    await log.open()
    await log.commit(Batch([Append("t", 0, f"id-{n}", n, b"%d" % n) for n in range(count)]))
    await log.commit(Batch([Put("s", "k", b"{}")]))
    await log.close()


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Where `os.fsync` was called, in order."""
    places: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        places.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return places


class TestDurableNames:
    """A file that was fsynced is lost with its folder, if the folder's own name is not durable."""

    def test_each_new_folder_is_synced_in_its_parent(self, tmp_path: Path, synced: list[str]) -> None:
        make_private_folder(tmp_path / "a" / "b" / "c")
        assert synced == [str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")]

    async def test_a_first_boot_does_so(self, tmp_path: Path, synced: list[str]) -> None:
        await stored(tmp_path / "new" / "data" / DATABASE)
        assert synced[:2] == [str(tmp_path), str(tmp_path / "new")]

    def test_an_import_is_durable_under_its_name(
        self, tmp_path: Path, synced: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        asyncio.run(stored(log_file(tmp_path / "data")))
        assert CliRunner().invoke(app, ["export", "lines.ndjson", "--data", "data"]).exit_code == 0
        synced.clear()
        assert CliRunner().invoke(app, ["import", "lines.ndjson", "--data", "other"]).exit_code == 0
        assert synced[-1] == str(tmp_path / "other")
        assert [path.name for path in (tmp_path / "other").iterdir()] == [DATABASE]


REMOVALS: dict[str, Callable[[Path], object]] = {
    "the folder": shutil.rmtree,
    "the folder, moved": lambda data: data.rename(data.with_name("elsewhere")),
    "the database": lambda data: (data / DATABASE).unlink(),
    "the write-ahead log": lambda data: (data / f"{DATABASE}-wal").unlink(),
    "the lock": lambda data: (data / f"{DATABASE}.lock").unlink(),
    "the database, replaced": lambda data: (
        shutil.copy(data / DATABASE, data / "x") and (data / "x").rename(data / DATABASE)
    ),
}


class TestRemoved:
    @pytest.mark.parametrize("what", REMOVALS)
    def test_the_node_says_so_and_ends(self, what: str, tmp_path: Path) -> None:
        with Serving(folder=tmp_path, engine="sqlite") as node:
            publish(node)
            REMOVALS[what](tmp_path / "data")
            assert node.wait() == 1
            assert "the node ends: the log's file" in node.errors()
            assert "while it was in use" in node.errors()

    @pytest.mark.parametrize("descriptors", [files._DESCRIPTORS, "/none"], ids=["by path", "by inode"])
    @pytest.mark.parametrize("what", [what for what in REMOVALS if what != "the lock"])
    async def test_nothing_is_acknowledged_from_that_moment_on(
        self, what: str, descriptors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also where the system does not tell the names of open files."""
        monkeypatch.setattr(files, "_DESCRIPTORS", descriptors)
        log = Log(SqliteEngine(log_file(tmp_path / "data")))
        await log.open()
        await log.commit(Batch([Append("t", 0, "a", 1, b"1")]))
        REMOVALS[what](tmp_path / "data")
        with pytest.raises(LogGone, match="while it was in use") as refused:
            await log.commit(Batch([Append("t", 0, "b", 1, b"2")]))
        assert refused.value.remedy
        assert isinstance(log.fault, LogGone)
        with pytest.raises(LogGone):
            await log.commit(Batch([Append("t", 0, "c", 1, b"3")]))
        await log.close()

    async def test_it_is_noticed_also_while_nothing_is_written(self, tmp_path: Path) -> None:
        engine = SqliteEngine(log_file(tmp_path / "data"))
        log = Log(engine)
        await log.open()
        noticed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        engine.on_failure(noticed.set_result)
        (tmp_path / "data" / f"{DATABASE}.lock").unlink()
        assert isinstance(await asyncio.wait_for(noticed, 30), LogGone)
        assert isinstance(log.fault, LogGone)
        await log.close()

    async def test_the_node_is_not_ready_from_that_moment_on(self, tmp_path: Path) -> None:
        node = Core(Settings(engine="sqlite", data=str(tmp_path / "data"), audit=False), App("shop"))
        await node.boot()
        parts = NodeParts(node.bus, log=node.log)
        assert readiness(parts).ready
        shutil.rmtree(tmp_path / "data")
        with pytest.raises(BusError, match="removed"):
            await node.bus.publish("orders", b"1")
        told = readiness(parts)
        assert (told.ready, "removed" in told.reason) == (False, True)
        await node.drain()

    def test_clients_are_told_why(self, tmp_path: Path) -> None:
        """Between the removal and the end of the process, a publisher gets `unavailable` with the reason."""
        with Serving(folder=tmp_path, engine="sqlite") as node:
            publish(node)
            shutil.rmtree(tmp_path / "data")
            with pytest.raises(urllib.error.HTTPError) as refused:
                publish(node)
            problem = json.load(refused.value)
            assert (refused.value.code, problem["code"]) == (503, "unavailable")
            assert "removed" in problem["detail"]

    async def test_closing_leaves_the_files_of_others_alone(self, tmp_path: Path) -> None:
        """A second log that took the place of the removed one keeps its write-ahead log."""
        path = log_file(tmp_path / "data")
        first = Log(SqliteEngine(path))
        await first.open()
        await first.commit(Batch([Append("t", 0, "a", 1, b"1")]))
        shutil.rmtree(tmp_path / "data")
        second = Log(SqliteEngine(path))
        await second.open()
        await second.commit(Batch([Append("t", 0, "b", 1, b"2")]))
        await first.close()
        await second.commit(Batch([Append("t", 0, "c", 1, b"3")]))
        await second.close()
        third = Log(SqliteEngine(path))
        await third.open()
        assert [event.id for event in await third.read("t", 0, 1, 10)] == ["b", "c"]
        await third.close()


async def crashed(path: Path, events: int = 3, *, then: Callable[[], object] = lambda: None) -> Path:
    """A folder with the files of a log whose process was killed."""
    log = Log(SqliteEngine(path))
    await log.open()
    for n in range(events):
        await log.commit(Batch([Append("t", 0, f"id-{n}", n, b"%d" % n)]))
        if n == events // 2:
            then()
    await log.commit(Batch([Put("s", "k", b"{}")]))
    image = path.parent.with_name(path.parent.name + "-killed")
    shutil.copytree(path.parent, image)
    await log.close()
    return image / path.name


class TestFilesOfDifferentLogs:
    async def test_a_write_ahead_log_without_its_database_is_refused(self, tmp_path: Path) -> None:
        path = await crashed(log_file(tmp_path / "data"))
        path.unlink()
        before = {each.name for each in path.parent.iterdir()}
        with pytest.raises(LogDamaged, match="without its database") as refused:
            await SqliteEngine(path).open()
        assert "put log.sqlite3 back" in refused.value.remedy
        assert {each.name for each in path.parent.iterdir()} == before

    async def test_so_is_one_of_another_log(self, tmp_path: Path) -> None:
        mine, other = await crashed(log_file(tmp_path / "mine")), await crashed(log_file(tmp_path / "other"))
        await fold(mine)
        await fold(log_file(tmp_path / "mine"))
        shutil.copy(f"{other}-wal", f"{mine}-wal")
        with pytest.raises(LogDamaged, match="does not belong to the database beside it: it is of another log"):
            await SqliteEngine(mine).open()

    async def test_so_is_one_beside_a_restored_backup(self, tmp_path: Path) -> None:
        path = log_file(tmp_path / "data")
        await stored(path)
        backup(path, tmp_path / "copy")
        await stored(path)
        image = await crashed(path)
        shutil.copy(tmp_path / "copy", image)
        with pytest.raises(LogDamaged, match="the database is older, as a restored backup is"):
            await SqliteEngine(image).open()

    async def test_so_is_an_old_one_beside_a_newer_database(self, tmp_path: Path) -> None:
        path = log_file(tmp_path / "data")
        image = await crashed(path)
        await stored(path)
        await stored(path)
        shutil.copy(path, image)
        with pytest.raises(LogDamaged, match="the database is newer"):
            await SqliteEngine(image).open()

    async def test_what_belongs_together_opens(self, tmp_path: Path) -> None:
        image = await crashed(log_file(tmp_path / "data"), 30)
        log = Log(SqliteEngine(image))
        await log.open()
        assert len(await log.read("t", 0, 1, 100)) == 30
        await log.close()

    async def test_a_node_says_so_when_it_starts(self, tmp_path: Path) -> None:
        path = await crashed(log_file(tmp_path / "x"))
        path.parent.rename(tmp_path / "data")
        (tmp_path / "data" / DATABASE).unlink()
        node = Serving(folder=tmp_path, engine="sqlite")
        node.launch()
        assert node.wait() == 1
        assert node.boot["data"]["reason"] == "log_damaged"
        assert "without its database" in node.boot["data"]["message"]


async def fold(path: Path) -> None:
    engine = SqliteEngine(path)
    await engine.open()
    await engine.close()
