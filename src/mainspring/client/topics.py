"""What can be asked about topics, groups and schedules: settings, lag, seeking, reading what is stored.

These go over HTTP or, for schedules, over the open connection; none of them touches the flow of events.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any, Literal, TypeVar
from urllib.parse import quote

from mainspring.client.connection import Link
from mainspring.client.errors import CannotConnect, ClientError, NodeRefused
from mainspring.client.event import StoredEvent, decoder
from mainspring.client.frames import Envelope, Ok
from mainspring.client.reconnect import Reconnect
from mainspring.client.start import Start, moment_ms, seek_frame

logger: logging.Logger = logging.getLogger("mainspring.client")

T = TypeVar("T")


class TopicVerbs(Link):
    """The part of a client that is about topics as a whole."""

    async def seek(self, topic: str, group: str, to: Start) -> None:
        """Move a whole group: to "beginning", "latest", an offset, a datetime, or a timedelta ago."""
        place = seek_frame(to, self.clock.wall_ms())
        await self.http.call("POST", f"/groups/{quote(topic, safe='')}/{quote(group, safe='')}/seek", place)

    async def lag(self, topic: str, group: str) -> int:
        """How many events of the topic the group has not settled."""
        offsets = await self.http.call("GET", f"/topics/{quote(topic, safe='')}/offsets")
        found = (each["groups"].get(group) for each in offsets["partitions"])
        return sum(each["lag"] for each in found if each is not None)

    async def replay(
        self,
        topic: str,
        *,
        since: datetime | timedelta | int | None = None,
        until: datetime | timedelta | int | None = None,
        type: Any = None,
    ) -> AsyncIterator[StoredEvent[Any]]:
        """Stored events between two moments, without a group and without acknowledging; ends with what is there."""
        now = self.clock.wall_ms()
        params = {}
        if since is not None:
            params["from"] = str(moment_ms(since, now))
        if until is not None:
            params["to"] = str(moment_ms(until, now))
        decode = decoder(type)
        async for page in self.http.read(topic, params=params):
            for envelope in page:
                yield StoredEvent(envelope, decode)

    async def follow(
        self, topic: str, *, since: Literal["latest", "beginning"] | datetime | timedelta = "latest", type: Any = None
    ) -> AsyncIterator[StoredEvent[Any]]:
        """Events as they are stored, for ever, without a group and without acknowledging: for dashboards and tails.

        Over reconnects nothing is missed and nothing comes twice.
        """
        start = since if isinstance(since, str) else str(moment_ms(since, self.clock.wall_ms()))
        decode = decoder(type)
        async for envelope in self.envelopes(topic, {"from": start}):
            yield StoredEvent(envelope, decode)

    async def envelopes(self, topic: str, params: dict[str, str]) -> AsyncIterator[Envelope]:
        """`follow` for the parts of a client: events as they lie in the topic, from where `params` says."""
        backoff = Reconnect(self.random)
        while True:
            try:
                async for cursor, envelope in self.http.follow(topic, params):
                    backoff.opened()
                    params = {"cursor": cursor}
                    if envelope is not None:
                        yield envelope
            except CannotConnect:
                logger.debug("following %r is interrupted", topic)
            except NodeRefused as error:
                if error.code not in ("unavailable", "log_unavailable"):
                    raise
            await asyncio.sleep(backoff.lost() / 1000)
            backoff.waited()

    async def insist(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do something over HTTP that may safely be done twice; while the node is away, again and again."""
        backoff = Reconnect(self.random)
        while True:
            try:
                return await work()
            except CannotConnect:
                logger.debug("the node does not answer; trying again")
            except NodeRefused as error:
                if error.code not in ("unavailable", "log_unavailable"):
                    raise
            if self.ended is not None:
                raise self.ended
            await asyncio.sleep(backoff.lost() / 1000)
            backoff.waited()

    async def put_topic(self, topic: str, /, **settings: Any) -> dict[str, Any]:
        """Create a topic or change its settings (`partitions=4`, `maxAttempts=3`, ...); its settings now."""
        found: dict[str, Any] = await self.http.call("POST", "/topics", {"topic": topic, **settings})
        return found

    async def schedule(
        self,
        name: str,
        topic: str,
        payload: Any,
        *,
        every: float | None = None,
        cron: str | None = None,
        key: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> int:
        """Publish an event again and again: `every` seconds, or as `cron` says (five fields, UTC).

        The node keeps the schedule; a second one of the same name replaces it. Gives the epoch ms of its next event.
        """
        members = {
            "name": name,
            "topic": topic,
            "payload": payload,
            "every": None if every is None else round(every * 1000),
            "cron": cron,
            "key": key,
            "headers": headers,
        }
        return (await self._request("SCHEDULE", members)).next

    async def unschedule(self, name: str) -> None:
        """Forget a schedule."""
        await self._request("UNSCHEDULE", {"name": name})

    async def _request(self, type: str, members: dict[str, Any]) -> Ok:
        """A request that may safely be made twice: after a lost connection it is made again."""
        while True:
            if self.ended is not None:
                raise self.ended
            future: asyncio.Future[Ok] = self.event_loop.create_future()

            def answered(answer: Ok | ClientError, future: asyncio.Future[Ok] = future) -> None:
                if future.done():
                    return
                if isinstance(answer, Ok):
                    future.set_result(answer)
                else:
                    future.set_exception(answer)

            self.conversation.request(type, members, answered)
            try:
                return await future
            except NodeRefused as error:
                if error.code != "connection_lost":
                    raise

    def wall_ms(self) -> int:
        """The time of day by the client's clock: epoch ms."""
        return self.clock.wall_ms()
