"""The verbs of a client in the node's own process: `app.publish`, `app.command` and the others, with no connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypeVar

from mainspring.bus import Bus, Published, envelope
from mainspring.bus.access import Pattern, is_pattern
from mainspring.client import (
    ClientError,
    NodeRefused,
    NodeVerbs,
    Place,
    TimedOut,
    check_texts,
    decode_envelope,
    decoder,
    moment_ms,
)
from mainspring.client import StoredEvent as ReadEvent
from mainspring.codec import Encoding
from mainspring.data_types import convert
from mainspring.durations import Duration, duration_ms, seconds
from mainspring.errors import MainspringError
from mainspring.kernel import Kernel, Retry
from mainspring.log import DamagedEvent
from mainspring.loop import Clock, time_limit
from mainspring.message import encode_bytes
from mainspring.runs import Runtime

T = TypeVar("T")
_LOOK_S: Final = 1.0  # a run that is executed here may go to another node, which tells nobody


class InProcess(NodeVerbs):
    """Asks the parts of a node that has booted. Its errors are those of a client."""

    def __init__(
        self,
        bus: Bus,
        kernel: Kernel,
        publish: Callable[..., Awaitable[Published]],
        new_id: Callable[[], str],
        event_loop: asyncio.AbstractEventLoop | None,
        encoding: Encoding | None = None,
        *,
        runtime: Runtime,
    ) -> None:
        self.new_id: Callable[[], str] = new_id
        self.clock: Clock = bus.clock
        self.event_loop: asyncio.AbstractEventLoop | None = event_loop
        self._bus = bus
        self._kernel = kernel
        self._publish = publish
        self._encoding = encoding
        self._runtime = runtime

    @property
    def run_check(self) -> Duration:
        return 0.05  # a look costs no more than a message here

    async def publish(
        self,
        topic: str,
        payload: Any,
        *,
        key: str | None = None,
        headers: dict[str, str] | None = None,
        id: str | None = None,
        delay: Duration = 0,
        at: datetime | None = None,
        ttl: Duration = 0,
        expect: int | None = None,
        timeout: Duration | None = None,
    ) -> Place:
        check_texts(key, headers)
        options: dict[str, Any] = {"key": key, "headers": headers, "id": id, "ttl": ttl, "expect": expect}
        options["delay_ms"] = duration_ms(delay) if delay else 0
        options["not_before"] = 0 if at is None else moment_ms(at, self.clock.wall_ms())
        try:
            async with _refusals(), time_limit(None if timeout is None else seconds(timeout)):
                stored = await self._publish(topic, payload, **options)
        except TimeoutError:
            raise TimedOut("the event was not stored in time", remedy="publish it again with an id") from None
        return Place(stored.offset, topic, stored.partition, stored.id)

    async def _ask(
        self,
        kind: str,
        type: str,
        data: Any,
        timeout: Duration | None,
        reply: Any,
        id: str | None = None,
        retry: Retry | None = None,
    ) -> Any:
        given, encoding = {} if data is None else data, self._encoding
        if encoding is not None:
            given = encoding.seal_data(type, encode_bytes(given))
        try:
            waiting = self._kernel.ask(kind, type, given, timeout=timeout, id=id, retry=retry)
        except ValueError as error:  # a type that cannot be one
            raise NodeRefused(str(error), code="bad_payload") from None
        async with _refusals():
            answer = await waiting
            if encoding is not None:
                answer = encoding.open_value(answer)
        return answer if reply is None else convert(answer, reply)

    async def _while_in_work_here(self, run: str, ends_ms: int | None) -> None:
        found = self._runtime.get(run)
        if found is None:
            return
        limit_s = _LOOK_S if ends_ms is None else min(_LOOK_S, max(0, ends_ms - self.clock.now_ms()) / 1000)
        with suppress(TimeoutError):
            async with time_limit(limit_s):
                await found.outcome()

    async def insist(self, work: Callable[[], Awaitable[T]]) -> T:
        return await work()

    async def follow(
        self, topic: str, *, since: Literal["latest", "beginning"] | datetime | timedelta = "latest", type: Any = None
    ) -> AsyncIterator[ReadEvent[Any]]:
        bus, decode = self._bus, decoder(type)
        if self._encoding is not None:
            decode = self._encoding.decoder(decode)
        async with _refusals():
            if is_pattern(topic):
                pattern = Pattern(topic)
                names = [each.name for each in bus.topics.all() if each.exists and pattern.covers_topic(each.name)]
                batches = bus.follow_pattern(topic, {name: await self._start(name, since) for name in names})
            else:
                bus.topics.get(topic)
                batches = bus.follow_entries(topic, after=await self._start(topic, since))
            async for entries in batches:
                for entry in entries:
                    if not isinstance(entry, DamagedEvent):
                        yield ReadEvent(decode_envelope(envelope(entry)), decode)

    async def _start(self, topic: str, since: str | datetime | timedelta) -> Mapping[int, int]:
        tails = {each.partition: each.tail for each in await self._bus.groups.offsets(topic)}
        if since == "latest":
            return tails
        if isinstance(since, str):
            return dict.fromkeys(tails, 0)
        moment = moment_ms(since, self.clock.wall_ms())
        return {each: await self._bus.offset_at(topic, each, moment) - 1 for each in tails}


@asynccontextmanager
async def _refusals() -> AsyncIterator[None]:
    """What a part refuses is what a client would be told."""
    try:
        yield
    except ClientError:
        raise
    except MainspringError as error:
        raise NodeRefused(error.message, remedy=error.remedy, code=error.code) from error
