"""What every operation is given: one request, read strictly, who sends it, and the node that answers.

A body is bounded, of a known type, and never larger in memory than the limit. aiohttp's own limit belongs to the
application as a whole. Here each body is unpacked and counted while it arrives, so that neither a wrong Content-Length
nor a small archive of a large text gets past the limit; what nobody reads is not unpacked either. It must be complete
after `body_timeout_ms`.

A query parameter that is misspelt or given twice is refused, never ignored. Which parameters an operation knows is
written in the table of operations. `agent_id` and `token` are known everywhere, because they say who asks and not what.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeVar

import msgspec
from aiohttp import hdrs, web

from mainspring.bus import UNLIMITED, Action, Bus, Caller, Forbidden, Quota, TopicConfig, Who
from mainspring.json_text import StrictDecoder
from mainspring.kernel import Kernel
from mainspring.server.health import NodeParts
from mainspring.server.http.access import Identify, claimed_agent
from mainspring.server.http.problem import HttpProblem, bad_query

T = TypeVar("T")

JSON: Final = "application/json"
ALWAYS_KNOWN: Final = frozenset({"agent_id", "token"})
MAX_INTEGER: Final = 2**53 - 1  # beyond it, JavaScript readers lose digits
_INTEGER: Final = re.compile(r"\d{1,16}\Z", re.ASCII)
_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,6})?([Zz]|[+-]\d\d:\d\d)\Z", re.ASCII)
_OCTETS: Final = "application/octet-stream"  # some clients say so of no body at all
_KNOWN_ENCODINGS: Final = frozenset({"", "identity", "gzip", "deflate"})


@dataclass(frozen=True, slots=True)
class Face:
    """The HTTP side of one node. `max_body_bytes` bounds a request, `heartbeat_ms` the silence of a stream.

    `identify` says who sent a request; a node with tokens passes its own.
    """

    node: NodeParts
    identify: Identify = claimed_agent
    max_body_bytes: int = 16 << 20  # a batch of some thousand ordinary events; held in memory until it is durable
    max_batch_events: int = 10_000  # one commit; more would make everybody else wait for it
    heartbeat_ms: int = 15_000  # proxies commonly give up on a silent connection after 30 to 60 seconds
    body_timeout_ms: int = 60_000  # for all of a body to arrive
    stalled_reader_ms: int = 60_000  # a reader that takes nothing for so long is gone or broken
    closing: asyncio.Event = field(default_factory=asyncio.Event)  # set when streams must end


_DECODERS: Final[dict[type, StrictDecoder[Any]]] = {}


def decode_body(type: type[T], body: bytes) -> T:
    """The object of this type that a body holds."""
    decoder: StrictDecoder[T] | None = _DECODERS.get(type)
    if decoder is None:
        decoder = _DECODERS[type] = StrictDecoder(type, "the body", "GET /openapi.json describes the body.")
    return decoder.decode(body)


class Call:
    """One request to an operation."""

    def __init__(self, face: Face, request: web.Request, caller: Who) -> None:
        self.face = face
        self.request = request
        self.caller = caller
        self.bus: Bus = face.node.bus

    @property
    def kernel(self) -> Kernel | None:
        """None where a bus is served alone."""
        return self.face.node.kernel

    @property
    def topic(self) -> str:
        """The topic that the path names."""
        return self.request.match_info["topic"]

    # --- who is asking ---

    @property
    def is_limited(self) -> bool:
        """Whether a token says that there is something the caller may not do."""
        return isinstance(self.caller, Caller) and self.caller.is_limited

    @property
    def visible_messages(self) -> Callable[[str, str], bool] | None:
        """Says whether the caller may know of messages of a kind and type; None where it may know of all."""
        return self.caller.may_see if isinstance(self.caller, Caller) and self.caller.is_limited else None

    @property
    def quota(self) -> Quota:
        """How much the caller may have of the node."""
        return self.caller.quota if isinstance(self.caller, Caller) else UNLIMITED

    def publisher(self, headers: Mapping[str, str] | None) -> Who:
        """Who publishes. While identities are only claimed, the event's own `agent_id` counts if nothing else does."""
        caller = self.caller
        if headers is not None and isinstance(caller, Caller) and caller.agent is None and not caller.is_proven:
            return Caller(headers.get("agent_id"), sid=caller.sid, quota=caller.quota)
        return caller

    async def check_publisher(self) -> None:
        """Raise Forbidden, before the body is read, for a token that may not publish to the topic."""
        if isinstance(self.caller, Caller) and self.caller.is_proven:
            await self.check("publish")

    async def check(self, action: Action, topic: str | None = None, group: str | None = None) -> None:
        """Raise Forbidden unless the caller may do this with the topic, by default the one the path names."""
        await self.bus.access.check(self.topic if topic is None else topic, action, self.caller, group)

    async def visible_topic(self) -> TopicConfig:
        """The settings of the topic, for a caller who may know of it. Raises UnknownTopic, and Forbidden."""
        await self.check_visible(self.topic)
        return self.bus.topics.get(self.topic).config

    async def check_visible(self, topic: str) -> None:
        """Raise Forbidden for a caller who may not know of this topic."""
        if topic not in await self.visible([topic]):
            raise Forbidden("this token has no right on this topic", remedy="use one with a scope for it")

    async def check_readable(self, topic: str) -> None:
        """Raise Forbidden for a caller who may not read this topic."""
        if topic not in await self.readable([topic]):
            raise Forbidden("this token may not read this topic", remedy="use one with a scope for it")

    async def visible(self, topics: Iterable[str]) -> set[str]:
        """Those of the topics that the caller has any right on."""
        return await self.bus.access.visible(self.caller, topics)

    async def readable(self, topics: Iterable[str]) -> set[str]:
        """Those of the topics whose events the caller may read."""
        return await self.bus.access.allowed(self.caller, "subscribe", topics)

    def audit(self, action: str, about: str, *, topic: str = "") -> None:
        """Write down that the caller changed something."""
        self.bus.audit.did(action, self.caller, about, topic=topic)

    # --- the body ---

    @property
    def max_event_bytes(self) -> int:
        """Of a body that holds one event: the bus's limit, and room for what surrounds the payload."""
        return min(self.face.max_body_bytes, self.bus.settings.max_frame_bytes + (64 << 10))

    async def json(self, type: type[T], limit: int | None = None) -> T:
        """The object a JSON body holds."""
        self.require_json()
        return decode_body(type, await self.body(limit))

    def require_json(self) -> None:
        """For routes whose body is JSON and nothing else."""
        kind = self.media_type()
        if kind != JSON:
            raise unsupported(kind, (JSON,))

    def media_type(self) -> str:
        """The body's media type without parameters, in lower case; JSON when the client does not say."""
        given = self.request.headers.get(hdrs.CONTENT_TYPE)
        if given is None or (given == _OCTETS and not self.request.can_read_body):
            return JSON
        kind, _, parameters = given.partition(";")
        for parameter in parameters.split(";"):
            name, _, value = parameter.partition("=")
            charset = value.strip().strip('"').lower()
            if name.strip().lower() == "charset" and charset not in ("utf-8", "utf8", "us-ascii"):
                text = f"The charset {value.strip()[:50]!r} is not understood."
                raise HttpProblem("unsupported_media_type", text, "Send UTF-8.")
        return kind.strip().lower()

    async def body(self, limit: int | None = None) -> bytes:
        """The whole body. Raises 413 as soon as it is known to be over `limit` bytes."""
        self.quota.spend(0, 0)  # who has to wait is told before the body is read
        request, limit = self.request, self.face.max_body_bytes if limit is None else limit
        encoding = request.headers.get(hdrs.CONTENT_ENCODING, "").strip().lower()
        if encoding not in _KNOWN_ENCODINGS:
            raise HttpProblem(
                "unsupported_media_type",
                f"The encoding {encoding[:50]!r} is not understood.",
                "Send the body as it is, or compressed with gzip or deflate.",
                headers={"Accept-Encoding": "gzip, deflate"},
            )
        if (request.content_length or 0) > limit:
            raise _too_large(limit)
        body, unpack = bytearray(), _Unpacker(encoding)
        try:
            async with asyncio.timeout(self.face.body_timeout_ms / 1000):
                async for chunk in request.content.iter_any():
                    body += unpack.take(chunk, limit + 1 - len(body))
                    if len(body) > limit:
                        raise _too_large(limit)
            unpack.end()
        except (web.RequestPayloadError, zlib.error):
            raise HttpProblem(
                "bad_json",
                "The body ends early or is not encoded as its headers say.",
                "Send the body completely, encoded as Content-Encoding says.",
            ) from None
        except TimeoutError:
            raise HttpProblem(
                "body_timeout",
                f"The body was not complete after {self.face.body_timeout_ms} ms.",
                "Send it faster, or less of it at once.",
                headers={hdrs.CONNECTION: "close"},
            ) from None
        self.quota.spend(0, len(body))
        return bytes(body)

    # --- query parameters and numbers in paths ---

    def check_names(self, known: Iterable[str]) -> None:
        """Refuse parameters the operation does not know, and known ones given twice."""
        names, query = {*known, *ALWAYS_KNOWN}, self.request.query
        for name in query:
            if name not in names:
                text = f"The parameter {name[:60]!r} is not known here."
                raise bad_query(text, f"Known are: {', '.join(sorted(names))}.")
        for name in names:
            if len(query.getall(name, ())) > 1:
                raise bad_query(f"The parameter {name!r} is given twice.", "Give it once.")

    def integer(self, name: str, *, least: int = 0, most: int = MAX_INTEGER) -> int | None:
        """A whole number, or None when it is not given."""
        text = self.request.query.get(name)
        if text is None:
            return None
        value = int(text) if _INTEGER.match(text) else -1
        if not least <= value <= most:
            raise bad_query(f"{name} is not a whole number from {least} to {most}.", "Write it in decimal digits.")
        return value

    def moment_ms(self, name: str) -> int | None:
        """A moment as epoch milliseconds, given as such or as RFC 3339 text; None when it is not given."""
        text = self.request.query.get(name)
        if text is None:
            return None
        if _INTEGER.match(text):
            return min(int(text), MAX_INTEGER)
        # A plus sign in a query means a space; who wrote the offset unescaped meant the plus.
        written = text.replace(" ", "+").upper()
        if _MOMENT.match(written):
            with suppress(ValueError, OverflowError):
                return round(datetime.fromisoformat(written).timestamp() * 1000)
        raise bad_query(f"{name} is not a moment.", "Write epoch milliseconds, or a time as in 2026-01-31T12:00:00Z.")

    def path_integer(self, name: str) -> int:
        """A number in the path."""
        text = self.request.match_info[name]
        if not _INTEGER.match(text):
            raise bad_query(f"{name} in the path is not a whole number.", "Write it in decimal digits.")
        return min(int(text), MAX_INTEGER)

    # --- the form of the answer (RFC 9110, section 12.5.1) ---

    def accepted_type(self, offered: Sequence[str]) -> str:
        """The offered media type the client prefers; the first one when it does not care. Raises 406."""
        header = ",".join(self.request.headers.getall(hdrs.ACCEPT, []))
        if not header.strip():
            return offered[0]
        ranges = [_media_range(part) for part in header.split(",") if part.strip()]
        ranked = [(_quality(kind, ranges), -place, kind) for place, kind in enumerate(offered)]
        best, _, kind = max(ranked)
        if best <= 0:
            text = "None of the accepted media types can be given."
            raise HttpProblem("not_acceptable", text, f"Accept one of: {', '.join(offered)}.")
        return kind


class _Unpacker:
    """Unpacks a compressed body as it arrives, never more than asked for. Raises zlib.error."""

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._stream: Any = None

    def take(self, chunk: bytes, most: int) -> bytes:
        if self._encoding in ("", "identity") or not chunk:
            return chunk
        if self._stream is None:  # "deflate" is sent with the header of zlib and, by mistake, without
            is_raw = self._encoding == "deflate" and chunk[0] & 0x0F != zlib.DEFLATED
            self._stream = zlib.decompressobj(-zlib.MAX_WBITS if is_raw else zlib.MAX_WBITS | 32)
        if self._stream.eof:
            raise zlib.error("there is something behind the end")
        found: bytes = self._stream.decompress(chunk, most)
        return found

    def end(self) -> None:
        if self._stream is not None and (not self._stream.eof or self._stream.unused_data):
            raise zlib.error("it ends early, or there is something behind the end")


def json_response(
    value: Any, *, status: int = 200, headers: dict[str, str] | None = None, content_type: str = JSON
) -> web.Response:
    """An answer made of plain data or Structs; bytes are taken as ready JSON text."""
    body = value if isinstance(value, bytes) else msgspec.json.encode(value)
    return web.Response(body=body, status=status, content_type=content_type, headers=headers)


def unsupported(kind: str, known: tuple[str, ...]) -> HttpProblem:
    """415, with the types that would have been understood."""
    return HttpProblem(
        "unsupported_media_type",
        f"A body of type {kind[:100]!r} is not understood here.",
        f"Set Content-Type to one of: {', '.join(known)}.",
        headers={"Accept-Post": ", ".join(known)},
    )


def _too_large(limit: int) -> HttpProblem:
    text = f"The body is larger than {limit} bytes."
    return HttpProblem("too_large", text, "Send smaller events, or fewer in one request.")


def _media_range(part: str) -> tuple[str, float]:
    kind, _, parameters = part.partition(";")
    quality = 1.0
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "q":
            quality = 0.0
            with suppress(ValueError):
                quality = min(1.0, max(0.0, float(value)))
    return kind.strip().lower(), quality


def _quality(kind: str, ranges: Sequence[tuple[str, float]]) -> float:
    """What the most specific range that covers `kind` says about it."""
    main = kind.partition("/")[0]
    for cover in (kind, f"{main}/*", "*/*"):
        found = [quality for name, quality in ranges if name == cover]
        if found:
            return max(found)
    return 0.0
