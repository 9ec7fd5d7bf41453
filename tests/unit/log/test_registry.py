"""Engines are found by the scheme of their address; other packages bring their own."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

import pytest

from mainspring.errors import MissingExtra, SettingError
from mainspring.log import Engine, EngineSetup, Inspection, MemoryEngine, SqliteEngine, engine_factory, open_engine

FRESH = EngineSetup(Path("unused"))


class DiskFactory:
    """What another package would offer."""

    package = ""
    install = ""

    def open(self, address: str, setup: EngineSetup) -> Engine:
        return SqliteEngine(setup.data_dir / address.removeprefix("disk://"))

    async def inspect(self, address: str, setup: EngineSetup) -> Inspection:
        return Inspection(place=address, log=False, knows=1)

    async def init(self, address: str, setup: EngineSetup) -> list[str]:
        return []


DISK = DiskFactory()


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = metadata.EntryPoints(
        [
            metadata.EntryPoint("disk", f"{__name__}:DISK", "mainspring.engines"),
            metadata.EntryPoint("broken", "a_package_that_is_not_there:FACTORY", "mainspring.engines"),
        ]
    )
    monkeypatch.setattr(metadata, "entry_points", lambda **_: entries)


def test_embedded_engines_need_no_entry_point(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delattr(metadata, "entry_points")
    assert isinstance(open_engine("memory", tmp_path), MemoryEngine)
    assert isinstance(open_engine("sqlite", tmp_path), SqliteEngine)


@pytest.mark.usefixtures("offered")
async def test_another_package_brings_an_engine(tmp_path: Path) -> None:
    engine = open_engine("disk://x.log", tmp_path)
    assert isinstance(engine, SqliteEngine)
    assert engine.path == tmp_path / "x.log"
    assert (await engine_factory("disk://x.log").inspect("disk://x.log", FRESH)).place == "disk://x.log"


@pytest.mark.usefixtures("offered")
def test_an_unknown_engine_is_refused_with_what_there_is_and_without_its_password() -> None:
    with pytest.raises(SettingError) as refused:
        open_engine("ftp://me:secret@host/log", ".")
    assert refused.value.message == "there is no engine 'ftp://host/log'"
    assert refused.value.remedy == "use sqlite (durable, in the data directory), memory, broken://HOST or disk://HOST"


def test_the_engines_of_this_package_are_found_once_each() -> None:
    with pytest.raises(SettingError) as refused:
        open_engine("banana", ".")
    assert refused.value.remedy == (
        "use sqlite (durable, in the data directory), memory, mongodb://HOST, nats://HOST or postgres://HOST"
    )


@pytest.mark.parametrize(
    ("address", "driver", "extra"), [("nats://h", "nats", "nats"), ("mongodb://h", "pymongo", "mongo")]
)
def test_a_missing_driver_is_named_with_the_extra_that_brings_it(
    address: str, driver: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, driver, None)
    with pytest.raises(MissingExtra) as missing:
        open_engine(address, ".")
    assert engine_factory(address).package in missing.value.message
    assert missing.value.remedy == f"pip install 'mainspring[{extra}]'"


async def test_a_log_in_memory_cannot_be_prepared() -> None:
    with pytest.raises(SettingError, match="made by its node"):
        await engine_factory("memory").init("memory", FRESH)
