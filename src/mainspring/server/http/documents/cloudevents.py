"""CloudEvents 1.0: how one becomes an event of a topic, and how an event of a topic becomes one again.

The payload is the CloudEvent's data, byte for byte where it is JSON. Every attribute becomes a header `ce-<name>`,
the same spelling the HTTP binding uses, so that a consumer of the topic sees them without knowing this module. The
extension `partitionkey` becomes the event's key, because that is what it means. Data that is not JSON is kept as a
JSON string: text as it is, bytes in base64 with the header `ce-data_base64` (an underscore cannot occur in an
attribute's name, so this header cannot be confused with one).

Going back, an event that came as a CloudEvent has its own attributes again; any other event is given the four
required ones: its id, the topic's address as source, the topic as type, its time. Where the event stands in the log
is given in three extensions of our own, which are ignored on the way in: a copy of an event stands somewhere else.

Types of extension attributes (boolean, integer) become text, as they do in the HTTP binding's binary mode.

`source` and `id` together name a CloudEvent for ever, so they also serve as its publish id: an event sent twice
because an answer got lost is stored once.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes

import msgspec

from mainspring.bus import NewEvent
from mainspring.errors import MainspringError
from mainspring.json_text import check_json, check_text, refuse_duplicates, why_unreadable
from mainspring.log import StoredEvent

STRUCTURED: Final = "application/cloudevents+json"
BATCHED: Final = "application/cloudevents-batch+json"
PREFIX: Final = "ce-"
BASE64_MARK: Final = "ce-data_base64"
KEY_ATTRIBUTE: Final = "partitionkey"

_REQUIRED: Final = ("specversion", "id", "source", "type")
_NEVER_EMPTY: Final = (*_REQUIRED, "subject", "dataschema", "datacontenttype", KEY_ATTRIBUTE)
_PLACE: Final = ("mainspringtopic", "mainspringpartition", "mainspringoffset")
_NAME: Final = re.compile(r"[a-z0-9]+\Z")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)\Z")
_JSON_TYPE: Final = re.compile(r"(application|text)/json\Z|[^/]+/[^/]+\+json\Z")
_OBJECTS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAYS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_HEADERS: Final = msgspec.json.Decoder(dict[str, str])


class BadCloudEvent(MainspringError):
    """What arrived calls itself a CloudEvent and is none."""

    code = "bad_cloudevent"


def is_binary_mode(headers: Mapping[str, str]) -> bool:
    """Whether the request's headers say that its body is the data of a CloudEvent."""
    return any(f"{PREFIX}{name}" in headers for name in _REQUIRED)


def from_structured(body: bytes) -> NewEvent:
    """One CloudEvent in the JSON format."""
    check_text(body, "the body")
    members = _decoded(_OBJECTS, body, "an object")
    refuse_duplicates(body, members, "the body")
    return _from_members(members)


def from_batch(body: bytes) -> Iterator[NewEvent]:
    """The CloudEvents of a JSON array, one by one as they are asked for; an error says which one it is."""
    check_text(body, "the body")
    for number, raw in enumerate(_decoded(_ARRAYS, body, "an array"), 1):
        try:
            event = from_structured(bytes(raw))
        except MainspringError as error:
            error.message = f"Event {number} of the batch: {error.message}"
            raise
        yield event


def from_binary(headers: Iterable[tuple[str, str]], content_type: str | None, body: bytes) -> NewEvent:
    """A CloudEvent whose attributes are HTTP headers and whose data is the body."""
    attributes: dict[str, str] = {}
    for name, value in headers:
        lowered = name.lower()
        if lowered.startswith(PREFIX):
            attribute = lowered.removeprefix(PREFIX)
            if attribute in attributes:
                raise BadCloudEvent(f"The header {lowered} is given twice.", remedy="Give each attribute once.")
            attributes[attribute] = _header_value(lowered, value)
    attributes.pop("datacontenttype", None)  # in this mode the Content-Type header is that attribute
    if content_type is not None:
        attributes["datacontenttype"] = content_type
    payload, in_base64 = _payload_of(content_type, body)
    return _checked(attributes, payload, in_base64)


def to_structured(event: StoredEvent) -> bytes:
    """The event as one CloudEvent in the JSON format; its payload's bytes are not touched."""
    headers = {} if event.headers is None else _HEADERS.decode(event.headers)
    members: dict[str, Any] = _own_attributes(headers) or _given_attributes(event, headers)
    if event.key is not None:
        members[KEY_ATTRIBUTE] = event.key
    members |= zip(_PLACE, (event.topic, event.partition, event.offset), strict=True)
    members["data_base64" if headers.get(BASE64_MARK) == "true" else "data"] = msgspec.Raw(event.payload)
    return msgspec.json.encode(members)


def _own_attributes(headers: dict[str, str]) -> dict[str, Any]:
    """The attributes the event came with; none unless it came as a CloudEvent."""
    found = {
        name.removeprefix(PREFIX): value
        for name, value in headers.items()
        if name.startswith(PREFIX) and _NAME.match(name.removeprefix(PREFIX))
    }
    return found if all(found.get(name) for name in _REQUIRED) else {}


def _given_attributes(event: StoredEvent, headers: dict[str, str]) -> dict[str, Any]:
    """Attributes for an event that never was a CloudEvent; headers with a fitting name become extensions."""
    taken = {*_NEVER_EMPTY, *_PLACE, "time", "data"}
    extensions = {name: value for name, value in headers.items() if _NAME.match(name) and name not in taken}
    moment = datetime.fromtimestamp(event.ts / 1000, UTC).isoformat(timespec="milliseconds")
    return {
        "specversion": "1.0",
        "id": event.id,
        "source": f"/topics/{quote(event.topic, safe='')}",
        "type": event.topic,
        "time": moment.replace("+00:00", "Z"),
        "datacontenttype": "application/json",
        **extensions,
    }


def _decoded(decoder: msgspec.json.Decoder[Any], body: bytes, what: str) -> Any:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError:
        raise BadCloudEvent(f"A CloudEvent body of this type is {what}.", remedy=_SPECIFICATION) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise why_unreadable(body, error, "the body") from None


def _from_members(members: dict[str, msgspec.Raw]) -> NewEvent:
    data, encoded = members.pop("data", None), members.pop("data_base64", None)
    if data is not None and encoded is not None:
        raise BadCloudEvent("Both data and data_base64 are given.", remedy="Give one of them.")
    attributes: dict[str, str] = {}
    for name, raw in members.items():
        text = _attribute_text(name, raw)
        if text is not None:
            attributes[name] = text
    if encoded is None:
        payload = b"null" if data is None else bytes(data)
        return _checked(attributes, payload, in_base64=False)
    payload = bytes(encoded)
    _check_base64(payload)
    return _checked(attributes, payload, in_base64=True)


def _attribute_text(name: str, raw: msgspec.Raw) -> str | None:
    """An attribute's value as text; null means that it is not set."""
    try:
        value = msgspec.json.decode(raw)
    except msgspec.ValidationError:
        raise BadCloudEvent(f"The attribute {name} is a number beyond every range.", remedy=_SPECIFICATION) from None
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        if not -(2**31) <= value < 2**31:
            raise BadCloudEvent(f"The attribute {name} is outside the range of an Integer.", remedy=_SPECIFICATION)
        return str(value)
    if isinstance(value, str):
        return value
    raise BadCloudEvent(
        f"The attribute {name} is neither text, nor a boolean, nor an integer.", remedy="Put structured values in data."
    )


def _payload_of(content_type: str | None, body: bytes) -> tuple[bytes, bool]:
    """The data of binary mode as JSON text, and whether that text is base64."""
    if not body:
        return b"null", False
    kind = (content_type or "application/json").split(";")[0].strip().lower()
    if _JSON_TYPE.match(kind):
        check_text(body, "the body")
        check_json(body)
        return body.strip(b" \t\r\n"), False
    if kind.startswith("text/"):
        check_text(body, "the body")
        return msgspec.json.encode(body.decode("utf-8")), False
    return msgspec.json.encode(base64.b64encode(body).decode("ascii")), True


def _checked(attributes: dict[str, str], payload: bytes, in_base64: bool) -> NewEvent:
    for name in _REQUIRED:
        if name not in attributes:
            raise BadCloudEvent(f"The required attribute {name} is missing.", remedy=_SPECIFICATION)
    for name, value in attributes.items():
        if not _NAME.match(name):
            raise BadCloudEvent(
                f"{name!r} is not the name of an attribute.", remedy="Use lower-case letters a-z and digits only."
            )
        if not value and name in _NEVER_EMPTY:
            raise BadCloudEvent(f"The attribute {name} is empty.", remedy="Leave it out, or give it a value.")
    if attributes["specversion"] != "1.0":
        raise BadCloudEvent(
            f"specversion {attributes['specversion']!r} is not known here.", remedy="Send specversion 1.0."
        )
    _check_time(attributes.get("time"))
    headers = {f"{PREFIX}{name}": value for name, value in attributes.items() if name not in (KEY_ATTRIBUTE, *_PLACE)}
    if in_base64:
        headers[BASE64_MARK] = "true"
    # The same for every copy of one CloudEvent; short whatever the source and id are.
    name = hashlib.sha256(f"{attributes['source']}\n{attributes['id']}".encode()).hexdigest()[:40]
    return NewEvent(payload, attributes.get(KEY_ATTRIBUTE), headers, f"ce-{name}")


def _check_time(text: str | None) -> None:
    if text is None:
        return
    try:
        if _TIME.match(text):
            datetime.fromisoformat(text.upper())
            return
    except ValueError:
        pass
    raise BadCloudEvent("The attribute time is not a timestamp.", remedy="Write it as in 2026-01-31T12:00:00Z.")


def _check_base64(text: bytes) -> None:
    try:
        base64.b64decode(msgspec.json.decode(text, type=str), validate=True)
    except (msgspec.ValidationError, binascii.Error, ValueError):
        raise BadCloudEvent("data_base64 is not base64 text.", remedy="Encode the data as in RFC 4648.") from None


def _header_value(name: str, value: str) -> str:
    """A header's text, decoded as the HTTP binding says: an optional quoted string, then percent-encoded UTF-8."""
    if len(value) >= 2 and value[0] == value[-1] == '"':
        value = re.sub(r"\\(.)", r"\1", value[1:-1])
    try:
        return unquote_to_bytes(value.encode("utf-8")).decode("utf-8")
    except UnicodeError:
        raise BadCloudEvent(
            f"The header {name} is not UTF-8.", remedy="Percent-encode what is not printable ASCII."
        ) from None


_SPECIFICATION: Final = "The CloudEvents 1.0 specification says which attributes there are."
