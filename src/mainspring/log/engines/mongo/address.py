"""The address of the engine: what MongoDB's driver must hear of it, and what only Mainspring understands.

An address is an ordinary MongoDB connection string. Its path names the database. The driver warns about options that it
does not know, so the few that are for the engine are taken out before it sees them.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote

import msgspec

from mainspring.errors import SettingError

SCHEMES: Final = ("mongodb://", "mongodb+srv://")
DEFAULT_DATABASE: Final = "mainspring"
BOOT_MS: Final = 5_000  # how long `open` looks for a server: long enough for an election, short enough to be told

_FORBIDDEN: Final = frozenset('/\\. "$*<>:|?\x00')  # in a database's name, by MongoDB's own rules
_MOST_NAME_BYTES: Final = 63


class Address(msgspec.Struct, frozen=True):
    """`url` is for the driver. `shown` is for people: it holds no password."""

    url: str
    database: str
    shown: str
    given: frozenset[str]  # names of the driver's options in the address, in lower case
    patience_ms: int = 10_000  # how long a commit or a read goes on trying while the server is away
    poll_ms: int = 100  # the longest pause between two looks for news where there is no change stream
    takeover_ms: int = (
        1_000  # after this long without progress, what another node committed is put in place by this one
    )
    keep_ms: int = 600_000  # how long a commit stays in the journal for nodes that fell behind


_OWN: Final = ("patience_ms", "poll_ms", "takeover_ms", "keep_ms")


def parse_address(text: str, database: str = DEFAULT_DATABASE) -> Address:
    """Raises `SettingError` for what can be no address. `database` is for addresses that name none."""
    scheme = next((scheme for scheme in SCHEMES if text.startswith(scheme)), None)
    if scheme is None:
        raise SettingError("this is no address of MongoDB", remedy="write mongodb://HOST:PORT/DATABASE")
    base, _, query = text[len(scheme) :].partition("?")
    hosts, _, path = base.partition("/")
    shown_hosts = hosts.rpartition("@")[2]
    if not shown_hosts:
        raise SettingError("the address of MongoDB names no host", remedy="write mongodb://HOST:PORT/DATABASE")
    name = unquote(path) or database
    _check_database(name)
    passed: list[str] = []
    own: dict[str, int] = {}
    given: set[str] = set()
    for option in query.split("&") if query else ():
        key, _, value = option.partition("=")
        if key in _OWN:
            own[key] = _milliseconds(key, value)
        else:
            passed.append(option)
            given.add(key.lower())
    url = f"{scheme}{hosts}/{path}" + (f"?{'&'.join(passed)}" if passed else "")
    return Address(url, name, f"{scheme}{shown_hosts}/{name}", frozenset(given), **own)


def _check_database(name: str) -> None:
    if _FORBIDDEN.intersection(name) or not 0 < len(name.encode("utf-8", "replace")) <= _MOST_NAME_BYTES:
        raise SettingError(
            f"{name!r} cannot name a MongoDB database", remedy="use letters, digits, _ and -, at most 63 bytes"
        )


def _milliseconds(key: str, value: str) -> int:
    if not value.isascii() or not value.isdigit() or not 1 <= int(value) <= 86_400_000:
        raise SettingError(f"{key} in the address is {value!r}", remedy="write whole milliseconds, at most a day")
    return int(value)
