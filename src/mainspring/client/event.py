"""One delivered event, and what a consumer may do with it.

The payload is decoded when it is first looked at, into the subscription's type. An event belongs to a lease of one
connection: when that connection is gone, so is the lease, the node delivers the event again, and settling the old copy
does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from mainspring.client.errors import BadPayload
from mainspring.client.frames import Delivered
from mainspring.telemetry import OpenSpan

T = TypeVar("T")
NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})
_UNSEEN: Final[Any] = object()
Decode = Callable[[Any], T]


class Leases(Protocol):
    """What an event needs of its subscription."""

    topic: str
    group: str

    def ack(self, event: Event[Any]) -> bool: ...
    def nack(self, event: Event[Any], delay_ms: int, reason: str) -> bool: ...
    def extend(self, event: Event[Any], ms: int) -> bool: ...
    @property
    def congested(self) -> bool: ...
    async def relieved(self) -> None: ...


class Event(Generic[T]):
    """An event under lease. `attempt` is 1 the first time it is delivered to this group."""

    __slots__ = ("_decode", "_leases", "_payload", "delivered", "epoch", "settled", "span")

    def __init__(self, delivered: Delivered, epoch: int, leases: Leases, decode: Decode[T]) -> None:
        self.delivered: Delivered = delivered
        self.epoch: int = epoch
        self.settled: bool = False
        self.span: OpenSpan | None = None
        self._leases = leases
        self._decode = decode
        self._payload: T = _UNSEEN

    @property
    def payload(self) -> T:
        """The payload in the subscription's type. Raises BadPayload when it does not fit."""
        if self._payload is _UNSEEN:
            try:
                self._payload = self._decode(self.delivered.envelope.payload)
            except (msgspec.MsgspecError, TypeError, ValueError) as error:
                raise BadPayload(
                    f"{self.topic} {self.partition}:{self.offset} does not fit: {error}",
                    remedy="nack it, or subscribe with another type",
                ) from error
        return self._payload

    @property
    def raw_payload(self) -> bytes:
        """The payload's JSON text, byte for byte as it was published."""
        return bytes(self.delivered.envelope.payload)

    @property
    def id(self) -> str:
        """The id it was published with; the same in every delivery."""
        return self.delivered.envelope.id

    @property
    def ts(self) -> int:
        """When it was stored: epoch ms."""
        return self.delivered.envelope.ts

    @property
    def topic(self) -> str:
        """The topic it was delivered from."""
        return self._leases.topic

    @property
    def group(self) -> str:
        """The group it was delivered to."""
        return self._leases.group

    @property
    def key(self) -> str | None:
        """What keeps events of one kind in one partition and in order; None without one."""
        return self.delivered.envelope.key

    @property
    def headers(self) -> Mapping[str, str]:
        """Its headers; empty without any. Not to be changed."""
        return self.delivered.envelope.headers or NO_HEADERS

    @property
    def partition(self) -> int:
        """The partition of its topic."""
        return self.delivered.partition

    @property
    def offset(self) -> int:
        """Its place in the partition, from 1 on; never given twice."""
        return self.delivered.offset

    @property
    def attempt(self) -> int:
        """1 the first time this group is given it; counted in the log, so a crash does not begin again."""
        return self.delivered.attempt

    async def ack(self) -> bool:
        """Done: do not deliver it again. False: the lease was gone already, so it will come again.

        The protocol answers no acknowledgement; the node stores it within some milliseconds.
        """
        done = self.accept()
        if self._leases.congested:
            await self._leases.relieved()
        return done

    async def nack(self, *, delay: float = 0.0, reason: str = "") -> bool:
        """Not done: deliver it again, after `delay` seconds at the earliest. `reason` shows up in a dead letter."""
        done = self.refuse(delay, reason)
        if self._leases.congested:
            await self._leases.relieved()
        return done

    async def extend(self, seconds: float) -> bool:
        """The lease ends `seconds` from now instead."""
        done = self._leases.extend(self, max(1, round(seconds * 1000)))
        if self._leases.congested:
            await self._leases.relieved()
        return done

    def accept(self) -> bool:
        """`ack` without waiting for a connection that is slow to take it."""
        return self._leases.ack(self)

    def refuse(self, delay: float, reason: str) -> bool:
        """`nack` without waiting."""
        return self._leases.nack(self, round(delay * 1000), reason)

    def __repr__(self) -> str:
        return f"Event({self.topic!r}, {self.partition}:{self.offset}, id={self.id!r}, attempt={self.attempt})"


class StoredEvent(Generic[T]):
    """An event that was read, not delivered: no lease, nothing to acknowledge."""

    __slots__ = ("headers", "id", "key", "offset", "partition", "payload", "topic", "ts")

    def __init__(self, envelope: Any, decode: Decode[T]) -> None:
        self.id: str = envelope.id
        self.ts: int = envelope.ts
        self.topic: str = envelope.topic
        self.partition: int = envelope.partition
        self.offset: int = envelope.offset
        self.key: str | None = envelope.key
        self.headers: Mapping[str, str] = envelope.headers or NO_HEADERS
        try:
            self.payload: T = decode(envelope.payload)
        except msgspec.MsgspecError as error:
            raise BadPayload(f"{self.topic} {self.partition}:{self.offset} does not fit: {error}") from error

    def __repr__(self) -> str:
        return f"StoredEvent({self.topic!r}, {self.partition}:{self.offset}, id={self.id!r})"


def decoder(type: Any) -> Callable[[Any], Any]:
    """Decodes JSON text into `type`: dataclass, TypedDict, msgspec Struct or anything msgspec knows; None: as it is."""
    if type is None or type is Any:
        return _decode_any
    return msgspec.json.Decoder(type).decode


_decode_any: Final = msgspec.json.Decoder().decode
