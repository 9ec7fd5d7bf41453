"""What every handler is given: the parts of the node, who is asking, and the limits of the HTTP face."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from mainspring.bus import Bus, Caller, Forbidden, TopicConfig, Who
from mainspring.kernel import Kernel
from mainspring.server.health import NodeParts
from mainspring.server.http.access import Identify, claimed_agent, known_topics, readable_topics


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
    stalled_reader_ms: int = 60_000  # a reader that takes nothing for so long is gone or broken
    closing: asyncio.Event = field(default_factory=asyncio.Event)  # set when streams must end

    @property
    def bus(self) -> Bus:
        return self.node.bus

    @property
    def kernel(self) -> Kernel | None:
        """None where a bus is served alone."""
        return self.node.kernel

    @property
    def max_event_bytes(self) -> int:
        """Of a body that holds one event: the bus's limit, and room for what surrounds the payload."""
        return min(self.max_body_bytes, self.bus.settings.max_frame_bytes + (64 << 10))

    async def publisher(self, request: web.Request, headers: Mapping[str, str] | None) -> Who:
        """Who publishes. While identities are only claimed, the event's own `agent_id` counts if nothing else does."""
        caller = await self.identify(request)
        if headers is not None and isinstance(caller, Caller) and caller.agent is None and not caller.is_proven:
            return Caller(headers.get("agent_id"), sid=caller.sid)
        return caller

    async def visible_topic(self, request: web.Request, topic: str) -> TopicConfig:
        """The settings of a topic, for a caller who may know of it. Raises UnknownTopic, and Forbidden."""
        await self.check_visible(request, topic)
        return self.bus.topics.get(topic).config

    async def check_visible(self, request: web.Request, topic: str) -> None:
        """Raise Forbidden for a caller who may not know of this topic."""
        if not await known_topics(self.bus, await self.identify(request), (topic,)):
            raise Forbidden("this token has no right on this topic", remedy="use one with a scope for it")

    async def check_readable(self, request: web.Request, topic: str) -> None:
        """Raise Forbidden for a caller who may not read this topic."""
        if not await readable_topics(self.bus, await self.identify(request), (topic,)):
            raise Forbidden("this token may not read this topic", remedy="use one with a scope for it")


def json_response(
    value: Any, *, status: int = 200, headers: dict[str, str] | None = None, content_type: str = "application/json"
) -> web.Response:
    """An answer made of plain data or Structs; bytes are taken as ready JSON text."""
    body = value if isinstance(value, bytes) else msgspec.json.encode(value)
    return web.Response(body=body, status=status, content_type=content_type, headers=headers)
