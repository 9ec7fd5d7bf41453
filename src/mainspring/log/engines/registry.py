"""From what a user wrote (`--engine sqlite`, `--engine nats://host`) to an engine.

The embedded engines are part of the log and named directly. Every other engine is a plug-in: a package offers an
`EngineFactory` as an entry point of the group `mainspring.engines`, under the scheme of its addresses (`nats` for
`nats://host`). Entry points are read only for an address that is not embedded, because that takes longer than opening a
file.

The reasons are in docs/decisions/engines.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from mainspring.errors import SettingError
from mainspring.log.contract import Engine, EngineFactory, EngineSetup, Inspection
from mainspring.log.engines.memory import MemoryFactory
from mainspring.log.engines.sqlite import SqliteFactory
from mainspring.loop import Clock
from mainspring.settings import without_secrets

ENTRY_POINTS: Final = "mainspring.engines"
_EMBEDDED: Final[dict[str, EngineFactory]] = {"sqlite": SqliteFactory(), "memory": MemoryFactory()}


def open_engine(
    address: str, data_dir: str | Path, clock: Clock | None = None, *, database: str = "mainspring"
) -> Engine:
    """The engine at this address, ready for its `open`. Raises `SettingError` for an address that no engine knows.

    For the other parameters see `EngineSetup`.
    """
    return engine_factory(address).open(address, EngineSetup(Path(data_dir), clock, database))


async def inspect_log(address: str, data_dir: str | Path, *, database: str = "mainspring") -> Inspection:
    """Look at the log that `open_engine` would open. Raises what the engine's `open` would raise, and makes nothing.

    Opening makes what is missing, which is right for a node and wrong for a command that asks whether it is there.
    """
    return await engine_factory(address).inspect(address, EngineSetup(Path(data_dir), database=database))


def engine_factory(address: str) -> EngineFactory:
    """The kind of engine that this address names. Raises `SettingError` when there is none."""
    if address in _EMBEDDED:
        return _EMBEDDED[address]
    from importlib import metadata

    scheme, separator, _ = address.partition("://")
    offered = metadata.entry_points(group=ENTRY_POINTS)
    if separator:
        for entry in offered.select(name=scheme):
            factory: EngineFactory = entry.load()
            return factory
    schemes: dict[str, str] = {}  # one for each factory
    for entry in sorted(offered, key=lambda entry: entry.name):
        schemes.setdefault(entry.value, f"{entry.name}://HOST")
    *others, last = ("sqlite (durable, in the data directory)", "memory", *schemes.values())
    raise SettingError(f"there is no engine {without_secrets(address)!r}", remedy=f"use {', '.join(others)} or {last}")
