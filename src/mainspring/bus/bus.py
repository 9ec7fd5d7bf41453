"""`Bus`: the one door to topics, groups and events. WebSocket, HTTP, capabilities and the command line all use it.

(Skeleton: signatures first, so that adapters can be written against them.)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Literal

from mainspring.bus.answers import (
    DeadLetter,
    GroupInfo,
    NewEvent,
    PartitionOffsets,
    Published,
    Readiness,
    Stats,
)
from mainspring.bus.schedules import Schedule
from mainspring.bus.session import Session
from mainspring.bus.start import Start
from mainspring.bus.topics import TopicChange, TopicConfig
from mainspring.log import Log, StoredEvent
from mainspring.loop import Clock, Loop
from mainspring.settings import Settings


class Bus:
    """Durable topics, groups, leases, dead letters and replay.

    Every method that takes `agent` obeys the topic's access lists for that agent (None: nobody in particular) and raises
    `Forbidden`. Names are checked (`BadFrame`). Reading methods raise `UnknownTopic` for a topic nobody created,
    published or subscribed to. Errors are subclasses of `mainspring.bus.BusError`.
    """

    def __init__(
        self,
        log: Log,
        clock: Clock,
        loop: Loop,
        *,
        settings: Settings,
        new_id: Callable[[], str],
        random: Callable[[], float],
    ) -> None:
        """`log` is open before `start` and closed after `stop`. `new_id` gives UUIDv7 text; `random` is in [0, 1)."""

    async def start(self) -> None:
        """Load topics, groups and schedules; start background work. Call once, on the running asyncio loop."""

    async def drain(self) -> None:
        """Refuse new requests (`Unavailable`), wait until everything accepted is durable and answered."""

    async def stop(self) -> None:
        """Give back leases, write positions, end background work. Idempotent."""

    def readiness(self) -> Readiness:
        """Ready between `start` and `drain`, while the log can be written."""

    # -- connections

    def open_session(self, agent: str | None, send: Callable[[bytes], None]) -> Session:
        """A connection of `agent`. `send` takes one frame (JSON text as UTF-8), never blocks and never raises.

        `session.receive(text)` takes one frame; `session.close()` releases its leases at once.
        """

    # -- topics

    async def put_topic(self, config: TopicConfig, *, agent: str | None = None) -> TopicChange:
        """Create or change a topic; durable when it returns. Raises Conflict when partitions would shrink."""

    def topics(self) -> list[TopicConfig]:
        """Every topic, by name; also those that exist only because someone published or subscribed."""

    def topic(self, name: str) -> TopicConfig:
        """Settings of one topic; raises UnknownTopic."""

    async def offsets(self, topic: str) -> list[PartitionOffsets]:
        """Head, tail and groups of each partition, ascending."""

    # -- publishing

    async def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        id: str | None = None,
        delay_ms: int = 0,
        not_before: int = 0,
        expect: int | None = None,
        agent: str | None = None,
    ) -> Published:
        """Store one event; durable when it returns. `payload` is JSON text (checked)."""

    async def publish_batch(
        self, topic: str, events: Sequence[NewEvent], *, agent: str | None = None
    ) -> list[Published]:
        """Store all events or none; answers in the order of the events."""

    # -- reading

    async def read(
        self, topic: str, partition: int, offset: int, limit: int, *, agent: str | None = None
    ) -> list[StoredEvent]:
        """Up to `limit` events from `offset` on (0 and 1: the beginning), ascending. Damaged events are skipped."""

    async def offset_at(self, topic: str, partition: int, ts: int) -> int:
        """The lowest offset whose event has `ts` (epoch ms) or later; tail + 1 when there is none."""

    def follow(
        self, topic: str, *, after: Mapping[int, int] | None = None, agent: str | None = None
    ) -> AsyncIterator[list[StoredEvent]]:
        """Events as they come, in lists, until the caller stops iterating or the bus stops.

        `after` gives the last offset already seen of each partition; a partition not named starts behind its tail of
        now, and with `after=None` all do. Within a partition offsets ascend and nothing is left out.
        """

    # -- groups

    def groups(self, topic: str | None = None) -> list[GroupInfo]:
        """Groups of one topic, or of all."""

    async def seek(self, topic: str, group: str, start: Start, *, partition: int | None = None) -> GroupInfo:
        """Move a group (all partitions, or one); what it held is given back. Raises UnknownGroup."""

    async def delete_group(self, topic: str, group: str) -> None:
        """Forget a group. Raises UnknownGroup, and Conflict while it has members."""

    # -- dead letters

    async def dead_letters(self, topic: str, *, offset: int = 0, limit: int = 100) -> list[DeadLetter]:
        """Of the original topic `topic`, from `offset` of its `.DLQ` topic on."""

    async def dead_letter(self, topic: str, offset: int) -> DeadLetter:
        """One; raises UnknownEvent."""

    async def redrive(self, topic: str, offsets: Sequence[int] | None = None) -> list[Published]:
        """Publish dead letters (all, or those at `offsets`) to their topic again and take them out of the `.DLQ` topic.

        Each moves in one step: it is never lost and never in both places.
        """

    # -- schedules

    async def put_schedule(self, schedule: Schedule, *, agent: str | None = None) -> Schedule:
        """Create or replace the schedule of this name; durable when it returns, with `next_ms` filled in."""

    def schedules(self) -> list[Schedule]: ...

    async def delete_schedule(self, name: str) -> None:
        """Raises UnknownSchedule."""

    # -- numbers and access

    def stats(self) -> Stats: ...

    def check_access(self, agent: str | None, action: Literal["publish", "subscribe"], topic: str) -> None:
        """Raise Forbidden unless `agent` may. Also for topics that do not exist yet."""
