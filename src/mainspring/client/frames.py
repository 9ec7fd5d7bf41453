"""The protocol as a client sees it: the bytes of requests, and typed answers.

Payloads that arrive stay bytes until a program looks at them, so that a consumer which only counts does not pay for
decoding, and a typed one decodes once, straight into its type. Fields and frame types this client does not know are
passed over: a newer node may say more.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, Final, Literal
from urllib.parse import SplitResult, parse_qsl, urlsplit

import msgspec

from mainspring.client.errors import BadArgument, NotEncodable
from mainspring.data_types import json_encoder
from mainspring.settings import is_this_machine, without_secrets

logger: logging.Logger = logging.getLogger("mainspring.client")

_encoder: Final = json_encoder()
encode: Final = _encoder.encode


class EventToPublish(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One event of a PUBLISH_BATCH."""

    id: str
    payload: Any
    key: str | None = None
    headers: dict[str, str] | None = None
    delay_ms: int = 0
    not_before: int = 0
    ttl_ms: int = 0


class EventEnvelope(msgspec.Struct, frozen=True, gc=False):
    """An event as it is stored."""

    id: str
    ts: int
    topic: str
    payload: msgspec.Raw
    partition: int = 0
    offset: int = 0
    key: str | None = None
    headers: dict[str, str] | None = None
    payload_sha256: str | None = None


class Delivered(msgspec.Struct, frozen=True, gc=False):
    """One event of a MESSAGES frame."""

    partition: int
    offset: int
    envelope: EventEnvelope
    attempt: int = 1
    ended: int = 0  # processes that ended with it, where the subscription asks for that


class MessagesFrame(msgspec.Struct, frozen=True, gc=False, tag="MESSAGES", tag_field="type"):
    topic: str
    group: str
    messages: list[Delivered]
    pattern: str = ""  # what was subscribed to, where that is not the topic


class MessageFrame(Delivered, frozen=True, gc=False, kw_only=True, tag="MESSAGE", tag_field="type"):
    topic: str
    group: str


class OkFrame(msgspec.Struct, frozen=True, gc=False, tag="OK", tag_field="type"):
    corr: int = 0
    next: int = 0  # of SCHEDULE: when it fires first


class PublishedFrame(msgspec.Struct, frozen=True, gc=False, tag="PUBLISHED", tag_field="type"):
    partition: int
    offset: int
    corr: int = 0


class PublishedBatchFrame(msgspec.Struct, frozen=True, gc=False, tag="PUBLISHED_BATCH", tag_field="type"):
    offsets: list[tuple[int, int]]
    corr: int = 0


class ErrorFrame(msgspec.Struct, frozen=True, gc=False, tag="ERROR", tag_field="type"):
    code: str
    message: str
    corr: int = 0
    in_reply_to: str = ""
    topic: str = ""
    group: str = ""
    retry_after_ms: int = 0


Answer = MessagesFrame | MessageFrame | OkFrame | PublishedFrame | PublishedBatchFrame | ErrorFrame
_decoder: Final[msgspec.json.Decoder[Answer]] = msgspec.json.Decoder(Answer)
decode: Final = _decoder.decode
decode_envelope: Final = msgspec.json.Decoder(EventEnvelope).decode


def encode_payload(payload: Any) -> bytes:
    """A payload's JSON text. Raises NotEncodable, naming what cannot be said in JSON."""
    try:
        return encode(payload)
    except (TypeError, ValueError, RecursionError) as error:  # an unknown type, half a surrogate pair, NaN
        raise _not_encodable(error) from None


def _not_encodable(error: Exception) -> NotEncodable:
    return NotEncodable(
        f"the event cannot be written as JSON: {error}",
        remedy="give dataclasses, msgspec Structs, TypedDicts, Pydantic models, or what JSON has",
    )


def encode_event(
    id: str,
    payload: Any,
    key: str | None = None,
    headers: dict[str, str] | None = None,
    delay_ms: int = 0,
    not_before: int = 0,
    ttl_ms: int = 0,
) -> bytes:
    """The bytes of one event. Raises NotEncodable, naming what cannot be said in JSON."""
    try:
        return encode(EventToPublish(id, payload, key, headers, delay_ms, not_before, ttl_ms))
    except (TypeError, ValueError, RecursionError) as error:
        raise _not_encodable(error) from None


def check_texts(key: object, headers: object) -> None:
    """Raise BadArgument unless key and headers are texts: the node refuses anything else, much later."""
    if key is not None and not isinstance(key, str):
        raise BadArgument(f"a key is text, not {type(key).__name__}", remedy="give str(key)")
    if headers is not None and not (
        isinstance(headers, dict)
        and all(isinstance(name, str) and isinstance(value, str) for name, value in headers.items())
    ):
        raise BadArgument("headers map text to text", remedy="give a dict of str to str")


def batch_frame(topic: bytes, corr: int, events: list[bytes], batch_id: str = "") -> bytes:
    """PUBLISH_BATCH; `topic` is JSON text already. An id comes first: that is where nodes look for it."""
    id = b'"batch_id":%b,' % encode(batch_id) if batch_id else b""
    return b'{"type":"PUBLISH_BATCH",%b"topic":%b,"corr":%d,"events":[%b]}' % (id, topic, corr, b",".join(events))


def expecting_frame(topic: bytes, corr: int, event: bytes, expect: int) -> bytes:
    """A PUBLISH that is only stored behind offset `expect`."""
    return b'{"type":"PUBLISH","topic":%b,"corr":%d,"expect":%d,%b' % (topic, corr, expect, event[1:])


def request_frame(type: str, corr: int, members: dict[str, Any]) -> bytes:
    """Any other request that gets an answer. Members that are None are left out; only a payload may be null."""
    said = {name: value for name, value in members.items() if value is not None or name == "payload"}
    return encode({"type": type, "corr": corr, **said})


def split_address(url: str) -> SplitResult:
    """The parts of a node's address, whose scheme is ws or wss; http:// is understood. Raises BadArgument otherwise."""
    try:
        parts = urlsplit(url)
        scheme = {"ws": "ws", "wss": "wss", "http": "ws", "https": "wss"}.get(parts.scheme)
        if scheme is not None and parts.hostname and parts.port != 0:
            return SplitResult(scheme, *parts[1:])
    except ValueError:  # brackets that do not close, a port that is none
        pass
    raise BadArgument(
        f"{without_secrets(url)!r} is not the address of a node", remedy="write ws://host:port or wss://host:port"
    )


def warn_of_plain_tokens(addresses: Iterable[str], token: str | None) -> None:
    """Say it where a token would cross a network that others can read."""
    for address in map(urlsplit, addresses if token else ()):
        host = address.hostname or ""
        if address.scheme in ("ws", "http") and not is_this_machine(host):
            logger.warning("the token goes to %s unencrypted: whoever sees the traffic sees it; use wss://", host)


def claims_of(address: SplitResult) -> dict[str, str]:
    """What an address says about who is asking."""
    return {name: value for name, value in parse_qsl(address.query) if name == "agent_id"}


# Where reading begins. The protocol knows three kinds: behind the tail, at an offset, at a time in epoch milliseconds.
Start = Literal["latest", "beginning"] | int | datetime | timedelta | None


def start_frame(start: Start, wall_ms: int) -> dict[str, Any] | None:
    """The protocol's `from`, or None where the group goes on and a new one starts at the beginning."""
    if start is None:
        return None
    if start == "latest":
        return {"kind": "latest"}
    if start == "beginning":
        return {"kind": "offset", "value": 0}
    if isinstance(start, int) and not isinstance(start, bool) and start >= 0:
        return {"kind": "offset", "value": start}
    if isinstance(start, (datetime, timedelta)):
        return {"kind": "timestamp", "value": moment_ms(start, wall_ms)}
    raise BadArgument(
        f"{start!r} is no place to begin", remedy='give "latest", "beginning", an offset, a datetime or a timedelta'
    )


def seek_frame(start: Start, wall_ms: int) -> dict[str, Any]:
    """Like `start_frame` for a group that is already somewhere: `"beginning"` moves it there."""
    if start is None:
        raise BadArgument("seek needs a place", remedy='give "beginning", "latest", an offset or a time')
    return {"kind": "offset", "value": 1} if start == "beginning" else start_frame(start, wall_ms) or {}


def moment_ms(moment: datetime | timedelta | int, wall_ms: int) -> int:
    """Epoch milliseconds of a moment: a time with its zone, so long ago, or the number itself."""
    if isinstance(moment, timedelta):
        return max(0, wall_ms - round(moment.total_seconds() * 1000))
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise BadArgument(f"{moment.isoformat()} has no time zone", remedy="give an aware datetime")
        return max(0, round(moment.timestamp() * 1000))
    return moment
