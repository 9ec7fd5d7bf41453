"""The address of a log in MongoDB, the driver's client, and what the driver's errors mean.

Writes wait for a majority and its journals, reads see only what a majority has: what was read once can then never be
taken back. The driver's own retrying of writes is off, because an insert into the journal that is tried again must be
recognised, on every kind of server, and the engine does that itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import unquote

import msgspec
from bson.codec_options import CodecOptions, TypeDecoder, TypeRegistry
from bson.int64 import Int64
from pymongo import AsyncMongoClient, ReadPreference
from pymongo.errors import (
    ConfigurationError,
    ConnectionFailure,
    InvalidURI,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
    WaitQueueTimeoutError,
    WriteConcernError,
)
from pymongo.monitoring import ConnectionPoolListener

from mainspring.errors import MainspringError, SettingError
from mainspring.log.contract import Durability, LogAccess, LogUnavailable
from mainspring.loop import Clock

_CONNECT_MS: Final = 2_000
_ANSWER_MS: Final = 10_000  # a server that is silent for so long is taken for lost, and asked again


class _Plain(TypeDecoder):
    bson_type = Int64

    def transform_bson(self, value: Any) -> int:
        return int(value)


class _NewConnections(ConnectionPoolListener):
    """Calls `note` before anything is sent over a connection that is new."""

    def __init__(self, note: Callable[[], object]) -> None:
        self._note = note

    def connection_created(self, event: object) -> None:
        self._note()

    def _ignore(self, event: object) -> None:
        pass

    pool_created = pool_ready = pool_cleared = pool_closed = _ignore
    connection_ready = connection_closed = _ignore
    connection_check_out_started = connection_check_out_failed = _ignore
    connection_checked_out = connection_checked_in = _ignore


def connect(address: MongoAddress, on_connection: Callable[[], object] = lambda: None) -> Any:
    """A client; nothing is sent yet. Raises `SettingError` for options the driver refuses."""
    wanted: dict[str, Any] = {
        "w": "majority",
        "journal": True,
        "readconcernlevel": "majority",
        "serverselectiontimeoutms": min(BOOT_MS, address.patience_ms),
        "connecttimeoutms": _CONNECT_MS,
        "sockettimeoutms": min(_ANSWER_MS, address.patience_ms),
        "appname": "mainspring",
    }
    if "timeoutms" in address.given:
        del wanted["sockettimeoutms"]
    options = {name: value for name, value in wanted.items() if name not in address.given}
    try:
        return AsyncMongoClient(
            address.url, retryWrites=False, event_listeners=[_NewConnections(on_connection)], **options
        )
    except (ConfigurationError, InvalidURI, ValueError, TypeError, OSError) as error:
        raise SettingError(
            f"the address of MongoDB cannot be used: {error}", remedy="write mongodb://USER:PASSWORD@HOST:PORT/DATABASE"
        ) from error


def database_of(client: Any, address: MongoAddress) -> Any:
    """The log's database. Whole numbers come back as plain ones, whatever their size."""
    options: CodecOptions[dict[str, Any]] = CodecOptions(type_registry=TypeRegistry([_Plain()]))
    return client.get_database(address.database, codec_options=options, read_preference=ReadPreference.PRIMARY)


# -- the address: what the driver must know of it, and what only Mainspring understands
#
# An address is an ordinary MongoDB connection string. Its path names the database. The driver warns about options that
# it does not know, so the few that are for the engine are taken out before it sees them.


SCHEMES: Final = ("mongodb://", "mongodb+srv://")
DEFAULT_DATABASE: Final = "mainspring"
BOOT_MS: Final = 5_000  # how long `open` looks for a server: long enough for an election, short enough to wait for

_FORBIDDEN: Final = frozenset('/\\. "$*<>:|?\x00')  # in a database's name, by MongoDB's own rules
_MOST_NAME_BYTES: Final = 63


class MongoAddress(msgspec.Struct, frozen=True):
    """`url` is for the driver. `shown` is for people: it holds no password."""

    url: str
    database: str
    shown: str
    given: frozenset[str]  # names of the driver's options in the address, in lower case
    patience_ms: int = 10_000  # how long a commit or a read goes on trying while the server is away
    poll_ms: int = 100  # the longest pause between two looks at the journal where there is no change stream
    takeover_ms: int = 1_000  # after this long without progress this node puts in place what another one committed
    keep_ms: int = 600_000  # how long a commit stays in the journal for nodes that fell behind


_OWN: Final = ("patience_ms", "poll_ms", "takeover_ms", "keep_ms")


def parse_address(text: str, database: str = DEFAULT_DATABASE) -> MongoAddress:
    """Raises `SettingError` for what can be no address. `database` is for addresses that name none."""
    scheme = next((scheme for scheme in SCHEMES if text.startswith(scheme)), None)
    if scheme is None:
        raise SettingError("this is not a MongoDB address", remedy="write mongodb://HOST:PORT/DATABASE")
    base, _, query = text[len(scheme) :].partition("?")
    hosts, _, path = base.partition("/")
    shown_hosts = hosts.rpartition("@")[2]
    if not shown_hosts:
        raise SettingError("the address of MongoDB names no host", remedy="write mongodb://HOST:PORT/DATABASE")
    name = unquote(path) or database
    if _FORBIDDEN.intersection(name) or not 0 < len(name.encode("utf-8", "replace")) <= _MOST_NAME_BYTES:
        raise SettingError(
            f"{name!r} cannot name a MongoDB database", remedy="use letters, digits, _ and -, at most 63 bytes"
        )
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
    return MongoAddress(url, name, f"{scheme}{shown_hosts}/{name}", frozenset(given), **own)


def _milliseconds(key: str, value: str) -> int:
    if not value.isascii() or not value.isdigit() or not 1 <= int(value) <= 86_400_000:
        raise SettingError(f"{key} in the address is {value!r}", remedy="write whole milliseconds, at most a day")
    return int(value)


# -- from what the driver reports to what Mainspring says
#
# The one question that matters: may the server have done it? A server that could not be reached got no request. One
# that answered with an error did nothing. A connection that broke while the answer was awaited leaves it open.

_ACCESS_CODES = frozenset((13, 18, 31, 8000))  # unauthorized, authentication failed, no such role, Atlas' own
_DUPLICATE = 11000


def never_sent(error: PyMongoError) -> bool:
    """Whether the server certainly did nothing because it received nothing."""
    return isinstance(error, ServerSelectionTimeoutError | WaitQueueTimeoutError)


def may_pass(error: PyMongoError) -> bool:
    """Whether trying again later may help."""
    if isinstance(error, ConnectionFailure | WriteConcernError):
        return True
    return isinstance(error, OperationFailure) and error.has_error_label("RetryableWriteError")


def translated(error: PyMongoError, shown: str) -> MainspringError:
    """What to raise for it; `shown` is the address without its password."""
    if isinstance(error, OperationFailure) and error.code in _ACCESS_CODES:
        return LogAccess(
            f"MongoDB at {shown} refuses this user: {_reason(error)}",
            remedy="check user, password and authSource in the address, and that the user may read and write there",
        )
    if isinstance(error, ConnectionFailure):
        return LogUnavailable(
            f"MongoDB at {shown} cannot be reached: {_reason(error)}", remedy="is it running, and is the address right?"
        )
    return LogUnavailable(f"MongoDB at {shown} failed: {_reason(error)}", remedy="see the server's log; then try again")


def _reason(error: PyMongoError) -> str:
    """The driver's words, without the description of the whole topology behind them."""
    text = str(error)
    for end in (" (configured timeouts", ", Timeout:", ", full error:"):
        text = text.partition(end)[0]
    return text[:300]


def is_duplicate(error: dict[str, object]) -> bool:
    """Of one write of many: another node was faster."""
    return error.get("code") == _DUPLICATE


# -- trying again while the server is away

T = TypeVar("T")

_AGAIN_MS: Final = 100


class Patience:
    """For as long as the address says. Only for what may be done twice."""

    def __init__(self, address: MongoAddress, clock: Clock) -> None:
        self.ms: int = address.patience_ms
        self._shown = address.shown
        self._clock = clock

    def deadline_ms(self) -> int:
        return self._clock.now_ms() + self.ms

    async def __call__(self, work: Callable[[], Awaitable[T]]) -> T:
        """What `work` gives. Raises `LogUnavailable`, or `LogAccess`."""
        deadline = self.deadline_ms()
        while True:
            try:
                return await work()
            except PyMongoError as error:
                if not may_pass(error) or self._clock.now_ms() >= deadline:
                    raise translated(error, self._shown) from error
            await asyncio.sleep(_AGAIN_MS / 1000)


# -- what an acknowledgement means


def members_of(hello: Mapping[str, Any]) -> int | None:
    """How many servers hold the data; a router of shards does not tell."""
    if hello.get("msg") == "isdbgrid":
        return None
    return len(hello.get("hosts", ())) + len(hello.get("passives", ())) or 1


def describe(hello: Mapping[str, Any], write_concern: Mapping[str, Any]) -> Durability:
    """`hello` is the server's answer to that command; `write_concern` is what the client asks for."""
    w, journaled = write_concern.get("w", "majority"), write_concern.get("j", False)
    if w != "majority" or not journaled:
        asked = f"w={w}, journal={'true' if journaled else 'false'}"
        return Durability(
            durable=False,
            statement=f"the address asks for {asked}: an acknowledged commit can be lost; leave both out of it",
        )
    if hello.get("msg") == "isdbgrid":
        return Durability(durable=True, statement="sharded MongoDB: a majority of each shard has it in its journal")
    name = hello.get("setName")
    if name is None:
        return Durability(
            durable=True,
            statement="one MongoDB server: an acknowledged commit is in its journal: it outlives power, not the disk",
        )
    members = members_of(hello) or 1
    many = f"{members // 2 + 1} of {members} members have" if members > 1 else "its only member has"
    return Durability(
        durable=True, statement=f"MongoDB replica set {name}: {many} an acknowledged commit in the journal"
    )
