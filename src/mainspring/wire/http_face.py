"""What every handler is given: the bus, who is asking, and the limits of this face."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from mainspring.bus import Bus
from mainspring.wire.http_access import Identify, claimed_agent


@dataclass(frozen=True, slots=True)
class Face:
    """The HTTP side of one node. `max_body_bytes` bounds a request, `heartbeat_ms` the silence of a stream."""

    bus: Bus
    identify: Identify = claimed_agent
    max_body_bytes: int = 16 << 20  # a batch of some thousand ordinary events; held in memory until it is durable
    max_batch_events: int = 10_000  # one commit; more would make everybody else wait for it
    heartbeat_ms: int = 15_000  # proxies commonly give up on a silent connection after 30 to 60 seconds
    stalled_reader_ms: int = 60_000  # a reader that takes nothing for so long is gone or broken
    closing: asyncio.Event = field(default_factory=asyncio.Event)  # set when streams must end

    @property
    def max_event_bytes(self) -> int:
        """Of a body that holds one event: the bus's limit, and room for what surrounds the payload."""
        return min(self.max_body_bytes, self.bus.settings.max_frame_bytes + (64 << 10))

    async def publisher(self, request: web.Request, headers: Mapping[str, str] | None) -> str | None:
        """Who publishes. While identities are only claimed, the event's own `agent_id` counts if nothing else does."""
        agent = await self.identify(request)
        if agent is None and headers is not None and self.identify is claimed_agent:
            return headers.get("agent_id")
        return agent


def json_response(
    value: Any, *, status: int = 200, headers: dict[str, str] | None = None, content_type: str = "application/json"
) -> web.Response:
    """An answer made of plain data or Structs; bytes are taken as ready JSON text."""
    body = value if isinstance(value, bytes) else msgspec.json.encode(value)
    return web.Response(body=body, status=status, content_type=content_type, headers=headers)
