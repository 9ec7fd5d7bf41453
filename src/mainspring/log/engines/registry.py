"""From what a user wrote (`--engine sqlite`, `--engine nats://host`) to an engine.

The embedded engines are part of the log and named directly. Every other engine is a plug-in: a package offers an
`EngineFactory` as an entry point of the group `mainspring.engines`, under the scheme of its addresses (`nats` for
`nats://host`). Entry points are read only for an address that is not embedded, because that takes longer than opening a
file.

The reasons are in docs/decisions/engines.md.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from mainspring.errors import SettingError
from mainspring.log.contract import Engine, EngineFactory, EngineSetup, Inspection
from mainspring.log.engines.memory import MemoryFactory
from mainspring.log.engines.sqlite import SqliteFactory
from mainspring.loop import Clock
from mainspring.settings import is_this_machine, without_secrets

logger: logging.Logger = logging.getLogger("mainspring.log")

ENTRY_POINTS: Final = "mainspring.engines"
_EMBEDDED: Final[dict[str, EngineFactory]] = {"sqlite": SqliteFactory(), "memory": MemoryFactory()}


def open_engine(
    address: str, data_dir: str | Path, clock: Clock | None = None, *, database: str = "mainspring", **setup: Any
) -> Engine:
    """The engine at this address, ready for its `open`. Raises `SettingError` for an address that no engine knows.

    For the other parameters see `EngineSetup`.
    """
    engine = engine_factory(address).open(address, EngineSetup(Path(data_dir), clock, database, **setup))
    for host in exposed_hosts(address):
        logger.warning(
            "the password of the log goes to %s over a connection that need not be encrypted: whoever sees the traffic "
            "sees events and may see the password; %s",
            host,
            _ENCRYPTED_BY[urlsplit(address).scheme],
        )
    return engine


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


# -- passwords that others may see on their way

_ENCRYPTED_BY: Final = {
    "nats": "write tls:// in place of nats://",
    "mongodb": "add tls=true to the address",
    "mongodb+srv": "take tls=false out of the address",
    "postgresql": "add sslmode=verify-full to the address",
    "postgres": "add sslmode=verify-full to the address",
}
_MUST_ENCRYPT: Final = ("require", "verify-ca", "verify-full")


def exposed_hosts(address: str) -> list[str]:
    """The hosts beyond this machine that get a password or token over a connection that may be plain text."""
    scheme, _, rest = address.partition("://")
    if scheme not in _ENCRYPTED_BY:
        return []
    place, _, query = rest.partition("?")
    login, _, hosts = place.partition("/")[0].rpartition("@")
    options = {name.lower(): value for name, value in parse_qsl(query)}
    has_secret = ":" in login or bool(options.keys() & {"password", "token"}) or (scheme == "nats" and bool(login))
    if not has_secret or _is_encrypted(scheme, options):
        return []
    named = [unquote(each) for each in (hosts or options.get("host", "")).split(",")]
    return [
        host
        for each in named
        if not each.startswith("/") and (host := urlsplit(f"//{each}").hostname or "") and not is_this_machine(host)
    ]


def _is_encrypted(scheme: str, options: dict[str, str]) -> bool:
    if scheme == "nats":
        return bool(options.keys() & {"tls_ca", "tls_cert", "tls_key"})
    if scheme.startswith("mongodb"):
        said = options.get("tls", options.get("ssl"))
        return scheme == "mongodb+srv" if said is None else said == "true"
    return options.get("sslmode", os.environ.get("PGSSLMODE", "")) in _MUST_ENCRYPT
