"""The protocol's frames: typed decoding of what clients send, and the bytes of what they get.

A frame is decoded once, straight into its type; fields nobody asked for are skipped, so that newer clients can talk to
older nodes. Where an event is published they are refused: an option that the node does not know would not be kept.
`payload` and `corr` stay the bytes they were: a payload is stored and delivered without being decoded. Only when
decoding fails is the text looked at a second time, to say what exactly is wrong.

Outgoing frames are joined from bytes. Encoding a delivered event again would cost more than everything else the node
does for it.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, get_args

import msgspec

from mainspring.bus.errors import BadFrame, BadJson, BusError, UnknownType, bad_text
from mainspring.bus.results import NewEvent
from mainspring.errors import without_tokens
from mainspring.json_text import HALF_CHARACTER, read_leniently, too_deep
from mainspring.log import Append, StoredEvent
from mainspring.telemetry import KeptError

_SAFE: Final = 2**53  # what every JSON reader can hold exactly
Offset = Annotated[int, msgspec.Meta(ge=0, le=_SAFE)]
Count = Annotated[int, msgspec.Meta(ge=1, le=_SAFE)]
Ttl = Annotated[int, msgspec.Meta(ge=1, le=10 * 366 * 86_400_000)]
Overlap = Literal["queue", "skip", "allow"]
MAX_ID: Final = 255
EventId = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ID)]
BatchId = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]  # with a number behind it, it may be an event's

NOTHING: Final = msgspec.Raw(b"")
EXPIRES: Final = "x-expires"  # the header that says when an event expires: epoch ms
REPLY_TO: Final = "x-reply-to"  # of a request: the topic for its reply
REPLY_FOR: Final = "x-reply-for"  # of a request and its reply: the client that asked
REPLIES: Final = ".replies"  # how the name of a topic for replies ends
OF_AGENT: Final = ";"  # stands between the name of an agent, which has none, and what is the agent's own


class Start(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Where a group starts, or is moved to: the `from` of SUBSCRIBE.

    `latest`: behind the tail. `offset`: at `value` (0 and 1: the beginning). `timestamp`: at the first event whose
    `ts` is `value` (epoch ms) or later.

    In SUBSCRIBE, `latest` and offset 0 only say where a *new* group starts; any other start moves the whole group.
    """

    kind: Literal["latest", "offset", "timestamp"]
    value: Offset | None = None

    def checked(self) -> Start:
        """Itself; raises BadFrame when a timestamp has no value."""
        if self.kind == "timestamp" and self.value is None:
            raise BadFrame("a start by timestamp needs a value", remedy="give epoch milliseconds as `value`")
        return self


BEGINNING: Final = Start("offset", 0)
LATEST: Final = Start("latest")


PAYLOAD_SHA256: Final = "payload_sha256"  # a header in the log, a member of the envelope
_SHA256: Final = b'"payload_sha256":'


class ClientFrame(msgspec.Struct, tag_field="type", frozen=True, gc=False):
    """What every frame of a client may carry: `corr`, echoed in the answer."""

    corr: msgspec.Raw = NOTHING


class PublishFrame(ClientFrame, tag="PUBLISH", frozen=True, gc=False, kw_only=True, forbid_unknown_fields=True):
    topic: str
    payload: msgspec.Raw
    key: str | None = None
    headers: dict[str, str] | None = None
    id: EventId | None = None
    delay_ms: Offset | None = None
    not_before: Offset | None = None
    ttl_ms: Count | None = None
    expect: Offset | None = None
    payload_sha256: str | None = None


class BatchEvent(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    payload: msgspec.Raw
    key: str | None = None
    headers: dict[str, str] | None = None
    id: EventId | None = None
    delay_ms: Offset | None = None
    not_before: Offset | None = None
    ttl_ms: Count | None = None
    payload_sha256: str | None = None


OfferedEvent = PublishFrame | BatchEvent | NewEvent  # one event of a request, however it came


class PublishBatchFrame(
    ClientFrame, tag="PUBLISH_BATCH", frozen=True, gc=False, kw_only=True, forbid_unknown_fields=True
):
    topic: str
    events: Annotated[list[BatchEvent], msgspec.Meta(min_length=1)]
    batch_id: BatchId | None = None


class LeanEvent(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """An event of a batch that has nothing but this. Most have not, and cost less if nothing else is looked for."""

    payload: msgspec.Raw
    key: str | None = None


class LeanBatchFrame(ClientFrame, tag="PUBLISH_BATCH", frozen=True, gc=False, kw_only=True, forbid_unknown_fields=True):
    topic: str
    events: Annotated[list[LeanEvent], msgspec.Meta(min_length=1)]


class NamedEvent(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """The same, of a batch that has an id: those of its events need not be remembered."""

    payload: msgspec.Raw
    id: EventId
    key: str | None = None


class NamedBatchFrame(
    ClientFrame, tag="PUBLISH_BATCH", frozen=True, gc=False, kw_only=True, forbid_unknown_fields=True
):
    topic: str
    events: Annotated[list[NamedEvent], msgspec.Meta(min_length=1)]
    batch_id: BatchId


Wanted = Annotated[str, msgspec.Meta(max_length=4_096)]  # of a filter, which is kept as long as its subscription


class Filter(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Both given: both must hold. `asker` is set by the node: no replies to other agents."""

    key: Wanted | None = None
    header: tuple[Wanted, Wanted] | None = None
    asker: str | None = None


class SubscribeFrame(ClientFrame, tag="SUBSCRIBE", frozen=True, gc=False, kw_only=True):
    topic: str
    group: str
    start: Start | None = msgspec.field(default=None, name="from")
    max_inflight: Count | None = None
    filter: Filter | None = None
    ack: Literal["each", "upto"] = "upto"
    batch: Count = 1
    sticky: bool = False
    count_ends: bool = False
    group_ttl_ms: Ttl | None = None


class UnsubscribeFrame(ClientFrame, tag="UNSUBSCRIBE", frozen=True, gc=False, kw_only=True):
    topic: str
    group: str


class LeaseFrame(ClientFrame, frozen=True, gc=False, kw_only=True):
    """About one event that was delivered to a group."""

    topic: str
    partition: Offset
    group: str
    offset: Offset


class AckFrame(LeaseFrame, tag="ACK", frozen=True, gc=False, kw_only=True):
    pass


class NackFrame(LeaseFrame, tag="NACK", frozen=True, gc=False, kw_only=True):
    reason: str | None = None
    delay_ms: Offset | None = None
    reject: bool = False
    failure: KeptError | None = None


class ExtendFrame(LeaseFrame, tag="EXTEND", frozen=True, gc=False, kw_only=True):
    ms: Count
    begun: bool = False


class FlowFrame(ClientFrame, tag="FLOW", frozen=True, gc=False, kw_only=True):
    credits: Offset


class ScheduleFrame(ClientFrame, tag="SCHEDULE", frozen=True, gc=False, kw_only=True):
    name: str
    topic: str
    payload: msgspec.Raw
    every: Count | None = None
    cron: str | None = None
    timezone: str | None = None
    jitter: Offset = 0
    overlap: Overlap = "queue"
    key: str | None = None
    headers: dict[str, str] | None = None


class UnscheduleFrame(ClientFrame, tag="UNSCHEDULE", frozen=True, gc=False, kw_only=True):
    name: str


_Full = (
    PublishFrame
    | PublishBatchFrame
    | SubscribeFrame
    | UnsubscribeFrame
    | AckFrame
    | NackFrame
    | ExtendFrame
    | FlowFrame
    | ScheduleFrame
    | UnscheduleFrame
)
Request = _Full | LeanBatchFrame | NamedBatchFrame
TYPES: Final = frozenset(str(frame.__struct_config__.tag) for frame in get_args(_Full))

_decoder: Final[msgspec.json.Decoder[_Full]] = msgspec.json.Decoder(_Full)
_decode = _decoder.decode
_decode_lean: Final = msgspec.json.Decoder(LeanBatchFrame).decode
_decode_named: Final = msgspec.json.Decoder(NamedBatchFrame).decode
_BATCH: Final = b"PUBLISH_BATCH"
_BATCH_ID: Final = b'"batch_id"'
_to_json = msgspec.json.Encoder().encode


class Rejected(Exception):
    """A frame that could not be decoded: why, and what of it can be echoed."""

    def __init__(self, error: BusError, corr: msgspec.Raw = NOTHING, about: str = "") -> None:
        super().__init__(error.message)
        self.error = error
        self.corr = corr
        self.about = about


def decode(data: bytes) -> Request:
    """One frame of a client, which is UTF-8, or `Rejected`."""
    try:
        return _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _diagnose(data, error) from None


def decode_lean(data: bytes) -> LeanBatchFrame | None:
    """The same for a PUBLISH_BATCH whose events have nothing but payload and key; None for everything else."""
    if _BATCH not in data[:32]:  # clients say the type first
        return None
    try:
        return _decode_lean(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def is_named(data: bytes) -> bool:
    """Whether a frame may be a batch with an id, which clients then say first."""
    return _BATCH_ID in data[:48]


def decode_named(data: bytes) -> NamedBatchFrame | None:
    """`decode_lean` for a batch with an id."""
    try:
        return _decode_named(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _diagnose(data: bytes, cause: Exception) -> Rejected:
    """Why `data` is no frame. The standard parser reads what msgspec refuses (half surrogate pairs), so it can tell."""
    if isinstance(cause, UnicodeDecodeError):
        return Rejected(BadJson("the frame is not UTF-8", remedy="send one JSON object per text frame"))
    try:
        value = read_leniently(data)
    except RecursionError:
        return Rejected(bad_text(too_deep("the frame")))
    except ValueError:
        return Rejected(BadJson("the frame is not JSON", remedy="send one JSON object per text frame"))
    if not isinstance(value, dict):
        return Rejected(BadFrame("the frame is not a JSON object"))
    corr = _echo(value.get("corr"))
    kind = value.get("type")
    if not isinstance(kind, str):
        return Rejected(BadFrame("the frame has no `type`, or it is not text"), corr)
    if kind not in TYPES:
        shown = kind.encode("ascii", "backslashreplace").decode()[:40]
        return Rejected(UnknownType(f"unknown frame type {shown!r}"), corr)
    return Rejected(BadFrame(f"{kind}: {_reason(cause)}"), corr, kind)


def _reason(cause: Exception) -> str:
    if isinstance(cause, msgspec.ValidationError):
        return str(cause)
    if isinstance(cause, RecursionError):
        return "nested too deeply"
    return HALF_CHARACTER


def _echo(corr: object) -> msgspec.Raw:
    if corr is None:
        return NOTHING
    try:
        return msgspec.Raw(_to_json(corr))
    except (UnicodeEncodeError, ValueError, RecursionError):
        return NOTHING


# -- what clients get


def type_of(request: Request) -> str:
    return str(type(request).__struct_config__.tag)


def json_text(text: str) -> bytes:
    return _to_json(text)


def with_corr(frame: bytes, corr: msgspec.Raw) -> bytes:
    """The frame with `corr` as its last member."""
    echo = bytes(corr)
    return frame if not echo or echo == b"null" else b'%b,"corr":%b}' % (frame[:-1], echo)


def error_frame(error: BusError, about: str = "", topic: str = "", group: str = "") -> bytes:
    fields: dict[str, object] = {
        "type": "ERROR",
        "code": error.code,
        "message": without_tokens(str(error)),
        **error.details,
    }
    if about:
        fields["in_reply_to"] = about
    if topic:
        fields["topic"] = topic
    if group:
        fields["group"] = group
    try:
        return _to_json(fields)
    except UnicodeEncodeError:  # names that were refused may hold half a character
        return _to_json(
            {"type": "ERROR", "code": error.code, "message": error.message.encode("ascii", "replace").decode()}
        )


def refusal_frame(request: Request, error: BusError) -> bytes:
    """The ERROR that answers a request."""
    topic, group = getattr(request, "topic", ""), getattr(request, "group", "")
    return with_corr(error_frame(error, type_of(request), topic, group), request.corr)


def ok_frame(request: Request, **members: object) -> bytes:
    """The OK that answers a request."""
    return with_corr(_to_json({"type": "OK", "in_reply_to": type_of(request), **members}), request.corr)


def published_frame(topic: bytes, partition: int, offset: int, id: str, ts: int) -> bytes:
    """`topic` is JSON text already."""
    return b'{"type":"PUBLISHED","topic":%b,"partition":%d,"offset":%d,"id":%b,"ts":%d}' % (
        topic,
        partition,
        offset,
        _to_json(id),
        ts,
    )


def envelope_head(topic: str, partition: int) -> bytes:
    """The part of every envelope that is the same in a partition; `envelope` puts it in."""
    return b',"topic":%b,"partition":%d,"offset":' % (_to_json(topic), partition)


def envelope(event: StoredEvent) -> bytes:
    """The stored event as the protocol shows it."""
    return join_envelope(event, envelope_head(event.topic, event.partition), event.offset)


def join_envelope(event: StoredEvent | Append, head: bytes, offset: int) -> bytes:
    """The event as the protocol shows it: id, ts, topic, partition, offset, key?, headers?, payload."""
    id, ts, key, headers, payload = _to_json(event.id), event.ts, event.key, event.headers, event.payload
    if key is None and headers is None:  # one formatting takes two thirds of the time of joining parts
        return b'{"id":%b,"ts":%d%b%d,"payload":%b}' % (id, ts, head, offset, payload)
    parts = [b'{"id":%b,"ts":%d%b%d' % (id, ts, head, offset)]
    if key is not None:
        parts += (b',"key":', _to_json(key))
    if headers is not None and _SHA256 in headers:
        digest, headers = take_sha256(headers)
        parts += (b',"payload_sha256":', _to_json(digest))
    if headers is not None:
        parts += (b',"headers":', headers)
    parts += (b',"payload":', payload, b"}")
    return b"".join(parts)


def take_sha256(headers: bytes) -> tuple[str, bytes | None]:
    """The digest that a publisher gave, which is kept as a header, and the headers without it."""
    others = msgspec.json.decode(headers)
    digest = others.pop(PAYLOAD_SHA256, "")
    return digest, _to_json(others) if others else None
