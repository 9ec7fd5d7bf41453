"""Message: what the parts of the kernel send to each other.

A message has a kind, a type, data and metadata. Its data is kept as the JSON text it arrived in, because that one
choice settles four questions at once: a number keeps its exact value, two receivers never share an object, what a
handler gets is checked and made in a single step, and an answer is written without encoding it twice.

`parse` is the only way from bytes to a message. It is strict where Python's `json` is lenient (NaN, a byte order mark,
broken UTF-8, `true` for a number) and its texts name the place of a mistake, never the content.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

import msgspec
import uuid_utils

from mainspring.data_types import ModelMistake, is_model, json_encoder, model_members
from mainspring.errors import MainspringError
from mainspring.json_text import nesting

_T = TypeVar("_T")

Kind = Literal["command", "query", "event", "reply", "error"]
KINDS: Final = ("command", "query", "event", "reply", "error")
TYPE_SHAPE: Final = re.compile(r"[A-Z][a-zA-Z0-9]*\.[A-Z][a-zA-Z0-9]*")
NULL: Final = msgspec.Raw(b"null")

Ids = Callable[[], str]
"""Makes ids that never repeat. Passed in, so that a simulation can repeat itself."""


class _Uuids:
    """UUIDv7 texts: unique everywhere, and sorted by the time at which they were made."""

    def __call__(self) -> str:
        return str(uuid_utils.uuid7())

    def many(self, count: int) -> list[str]:
        """Ids of things that are made together: one UUID, of which the last 16 random bits are a number."""
        found: list[str] = []
        while count > 0:
            stem = str(uuid_utils.uuid7())[:-4]
            found += map(stem.__add__, _ENDS[:count])
            count -= len(_ENDS)
        return found


_ENDS: Final = tuple(f"{number:04x}" for number in range(4_096))
new_uuid: Final = _Uuids()


def counted_ids(prefix: str = "") -> Ids:
    """Ids of one process: a prefix of its own and a number. Short, cheap, and never the same twice."""
    if not prefix:
        unique = uuid_utils.uuid7().hex
        prefix = unique[:12] + unique[-8:]
    # Without a Python function in between: every message needs an id.
    return map(f"{prefix}-".__add__, map(str, itertools.count(1))).__next__


MAX_DEPTH: Final = 512  # what arrives can also be decoded and encoded wherever in a program that happens
_TOO_DEEP: Final = "Invalid JSON: nested too deeply"
_SPACE: Final = re.compile(rb"[ \t\r\n]")
_N: Final = ord("n")
_REMEMBERED_TYPES: Final = 4096
_encode = json_encoder().encode
_decode = msgspec.json.Decoder().decode
_as_raw = msgspec.json.Decoder(msgspec.Raw).decode
_as_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_as_text = msgspec.json.Decoder(str).decode


class NotJson(MainspringError, code="invalid_json"):
    """The text is not JSON. The message starts with the fixed words clients look for."""


class NotAMessage(MainspringError, code="invalid_message"):
    """The JSON is not a message. `id` is the sender's id when it could be read."""

    def __init__(self, message: str, *, id: str | None = None, type: str | None = None) -> None:
        super().__init__(message)
        self.id = id
        self.type = type


class NotEncodable(MainspringError, code="not_json"):
    """A value has no JSON form (NaN, infinity, an object without a schema, half a surrogate pair)."""


# Absent is None, but a null that was sent is refused: the decoder sees types without None, people read them with it.
if TYPE_CHECKING:
    _Text = str | None
    _Number = float | None
else:
    _Text = Annotated[str, msgspec.Meta(min_length=1)]
    _Number = Annotated[int, msgspec.Meta(gt=0)] | Annotated[float, msgspec.Meta(gt=0)]


_Ms = Annotated[int, msgspec.Meta(ge=0, le=86_400_000)]  # at most a day


class Retry(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """How a message is sent again when it fails: so many attempts in all, with pauses that double up to a limit."""

    max_attempts: Annotated[int, msgspec.Meta(ge=1, le=100)] = msgspec.field(default=5, name="maxAttempts")
    backoff_ms: _Ms = msgspec.field(default=1_000, name="backoff")
    max_backoff_ms: _Ms = msgspec.field(default=60_000, name="maxBackoff")

    def __post_init__(self) -> None:
        if not (1 <= self.max_attempts <= 100 and self.backoff_ms >= 0 and self.max_backoff_ms >= 0):
            raise ValueError("a retry has max_attempts from 1 to 100, backoff_ms >= 0 and max_backoff_ms >= 0")

    def pause_ms(self, attempt: int) -> int:
        """How long to wait when attempt number `attempt` has failed."""
        return min(self.backoff_ms << attempt - 1, self.max_backoff_ms)


if TYPE_CHECKING:
    _Policy = Retry | None
    _Attempt = int
else:
    _Policy = Retry
    _Attempt = Annotated[int, msgspec.Meta(ge=1)]


class Metadata(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Who a message is and where it comes from. Absent members are left out on the wire, never null."""

    id: str
    timestamp: Annotated[int, msgspec.Meta(ge=0)]  # epoch ms
    correlation: _Text = None
    causation: str | None = None
    timeout: _Number = None
    traceparent: _Text = None  # W3C's: the span it was sent in
    tracestate: _Text = None  # W3C's: what vendors add to it, passed on as it is
    retry: _Policy = None
    attempt: _Attempt = 1  # which one this is, of a message with a retry


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message. Immutable; `data` gives a new copy each time it is asked, so nobody can change what another sees."""

    kind: Kind
    type: str
    raw: msgspec.Raw = msgspec.field(name="data")
    metadata: Metadata

    @property
    def data(self) -> Any:
        return _decode(self.raw)

    @property
    def id(self) -> str:
        return self.metadata.id


class _FloatMetadata(Metadata, frozen=True):
    timestamp: float  # type: ignore[assignment]


class _FloatMessage(Message, frozen=True):
    metadata: _FloatMetadata


_parse = msgspec.json.Decoder(Message).decode
_parse_float = msgspec.json.Decoder(_FloatMessage).decode
_types_seen: set[str] = set()


def encode_data(value: Any) -> msgspec.Raw:
    """`value` as JSON text. Raises `NotEncodable`, whose text says what is wrong without repeating the value."""
    return msgspec.Raw(encode_bytes(value))


def encode_bytes(value: Any) -> bytes:
    """The same, for those who look at the text before they pass it on."""
    try:
        encoded = _encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise NotEncodable(f"cannot be encoded as JSON: {_without_values(error)}") from None
    # The encoder writes NaN and infinity as null; only where a null was written can one of them hide. Looking for its
    # first letter before looking for the word is three times as fast, and most texts have no null.
    if _N in encoded and b"null" in encoded and _hides_a_number(value):
        raise NotEncodable("cannot be encoded as JSON: NaN or infinity")
    return encoded


def encode_line(message: Message) -> bytes:
    """The message as one compact line, without its LF."""
    return _encode(message)


def compact(text: bytes) -> bytes:
    """JSON text without the spaces between its parts; for text that somebody else wrote."""
    return msgspec.json.format(text, indent=-1) if _SPACE.search(text) else text


may_exceed_a_double: Callable[[Any], object] = re.compile(rb"[0-9][eE][+]?[0-9]{3}|[0-9]{300}").search
"""Whether JSON text may hold a number that no computer can hold: a quick look, for `number_mistake` to judge."""


def number_mistake(raw: msgspec.Raw) -> str:
    """What is wrong with data whose numbers no computer can hold; empty when nothing is."""
    try:
        _decode(raw)
    except msgspec.DecodeError as error:
        return validation_text(error)
    return ""


def is_type(text: str) -> bool:
    """Whether `text` is two ASCII PascalCase segments."""
    if text in _types_seen:
        return True
    if TYPE_SHAPE.fullmatch(text) is None:
        return False
    if len(_types_seen) < _REMEMBERED_TYPES and len(text) < 128:
        _types_seen.add(text)
    return True


def parse(line: bytes, *, any_timestamp: bool = False) -> Message:
    """One line as a message. Raises `NotJson` or `NotAMessage`; their texts are safe to send back.

    With `any_timestamp` every number is one, and counts as whole milliseconds from 0: 1.5 is 1, and -1 is 0.
    """
    try:
        if not line.isascii():
            str(line, "utf-8")
        if len(line) > 2 * MAX_DEPTH and line.count(b"[") + line.count(b"{") > MAX_DEPTH and nesting(line) > MAX_DEPTH:
            raise NotJson(_TOO_DEEP)
        message = _parse(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        about_time = str(error).endswith("`$.metadata.timestamp`")
        whole = _whole_timestamp(line, any_timestamp) if about_time else None
        if whole is None:
            raise _refusal(line, error) from None
        message = whole
    if message.type not in _types_seen and not is_type(message.type):
        raise _invalid("type must be two PascalCase segments, like Memory.Get", message)
    if message.metadata.causation is None and (message.kind == "reply" or message.kind == "error"):
        raise _invalid(f"a message of kind {message.kind} needs metadata.causation", message)
    return message


def _whole_timestamp(line: bytes, any_timestamp: bool) -> Message | None:
    """A message whose timestamp is a whole number that was written as 1.0 or 1e3, or any; None for other mistakes."""
    try:
        message = _parse_float(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    members = {name: getattr(message.metadata, name) for name in Metadata.__struct_fields__}
    timestamp = float(members["timestamp"])
    if not any_timestamp and not (timestamp >= 0 and timestamp.is_integer()):
        return None
    members["timestamp"] = max(0, int(timestamp))
    return Message(message.kind, message.type, message.raw, Metadata(**members))


def _invalid(text: str, message: Message) -> NotAMessage:
    shown = message.type if is_type(message.type) else None
    return NotAMessage(f"Schema validation failed: {text}", id=message.metadata.id, type=shown)


def _refusal(line: bytes, error: Exception) -> MainspringError:
    """Distinguish text that is not JSON from JSON of the wrong shape; read the id if there is one."""
    if isinstance(error, RecursionError):
        return NotJson(_TOO_DEEP)
    try:
        text = _as_raw(str(line, "utf-8"))
        if not isinstance(error, msgspec.ValidationError):
            raise error
    except UnicodeDecodeError:
        return NotJson("Invalid JSON: not UTF-8")
    except RecursionError:
        return NotJson(_TOO_DEEP)
    except msgspec.DecodeError as broken:
        return NotJson(f"Invalid JSON: {_json_mistake(broken)}")
    members = _part(text, _as_members)
    if members is None:
        return NotAMessage("Schema validation failed: a message is an object with kind, type, data and metadata")
    type_given = _part(members.get("type"), _as_text)
    return NotAMessage(
        f"Schema validation failed: {validation_text(error)}",
        id=_part((_part(members.get("metadata"), _as_members) or {}).get("id"), _as_text),
        type=type_given if type_given is not None and is_type(type_given) else None,
    )


# One member at a time: a number no computer can hold, in one place, must not hide the id in another.


def _part(text: msgspec.Raw | None, decode: Callable[[msgspec.Raw], _T]) -> _T | None:
    try:
        return None if text is None else decode(text)
    except msgspec.ValidationError:
        return None


_PLACE = re.compile(r" - at `([^`]*)`$")
_SAFE_TEXTS = re.compile(r"(Expected `|Object missing required field `|Array length|Number out of range|Integer value)")


def validation_text(error: Exception) -> str:
    """What the decoder complains about, with everything that could be a sender's value taken out."""
    text = str(error)
    match = _PLACE.search(text)
    safe = isinstance(error.__cause__, ModelMistake)
    place = f" at {match[1]}" if match else ""
    text = text[: match.start()] if match else text
    if place.endswith((".metadata.timeout", ".metadata.timestamp")) and text.startswith("Expected"):
        wanted = "a number of ms greater than 0" if place.endswith("timeout") else "a whole number of ms, at least 0"
        return f"Expected {wanted}{place}"
    if text.startswith("Object contains unknown field"):
        return f"an unknown member{place}"
    if not safe and not _SAFE_TEXTS.match(text):
        return f"a value that is not allowed{place}"
    return text.replace("`", "") + place


def _json_mistake(error: Exception) -> str:
    text = str(error)
    return text.removeprefix("JSON is malformed: ") if text.startswith("JSON is malformed: ") else "unexpected end"


def _without_values(error: Exception) -> str:
    if isinstance(error, UnicodeEncodeError):
        return "half a surrogate pair"
    if isinstance(error, RecursionError):
        return "nested too deeply, or contains itself"
    text = str(error)
    return text if text.startswith(("Encoding objects of type", "Only dicts with")) else type(error).__name__


def _hides_a_number(value: Any) -> bool:
    """Whether a NaN or an infinity is inside. Walks without recursion: the encoder accepted the depth already."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, float):
            if item != item or item in (float("inf"), float("-inf")):
                return True
        elif isinstance(item, dict):
            waiting += item.keys()
            waiting += item.values()
        elif isinstance(item, (list, tuple, set, frozenset)):
            waiting += item
        elif isinstance(item, msgspec.Struct) or hasattr(item, "__dataclass_fields__"):
            names = getattr(item, "__struct_fields__", None) or item.__dataclass_fields__
            waiting += [getattr(item, name, None) for name in names]
        elif is_model(type(item)):
            waiting.append(model_members(item))
    return False
