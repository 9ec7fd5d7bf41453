"""What the log tells a node about all nodes' commits, brought to the tables of this one.

Topics, schemas and schedules that another node stored appear here; events that another node appended move the tails and
wake whoever waits for them; groups and members are told to the part that shares them out.

A table is read at start by scans, and a scan is not one moment in time. So the news of that time are kept, and repeated
in their order when the tables are read. A commit of this node's own comes last: when it is back, every commit before it
has been told, and what is known here is what the log held at one moment.

Events of this node's own are shown by whoever published them, after the publisher was answered. Only when its answer
was lost is nobody there to do that; then the news do it, a little later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mainspring.bus.groups.delivery import Delivery
from mainspring.bus.topics.registry import TopicRegistry
from mainspring.log import Batch, Change, KeptRecord, Log
from mainspring.loop import Loop

OWN_EVENTS_MS = 50  # by then the publisher has shown them, if it has heard of them at all
BARRIER = "barrier"

Heard = Callable[[KeptRecord], object]


class News:
    """Hands out the log's news. `after` is called when all records of one commit were handed out."""

    def __init__(
        self,
        log: Log,
        loop: Loop,
        topics: TopicRegistry,
        delivery: Delivery,
        listeners: Mapping[str, Heard],
        after: Callable[[], None],
    ) -> None:
        self._log = log
        self._loop = loop
        self._topics = topics
        self._delivery = delivery
        self._listeners = listeners
        self._after = after
        self._early: list[Change] | None = []
        self._own: dict[tuple[str, int], int] = {}
        self._stopped = False

    def listen(self) -> None:
        """From now on; before anything is read."""
        self._log.watch(self._heard)

    async def catch_up(self, node: str) -> None:
        """Everything that must be known was read: repeat what came meanwhile."""
        batch = Batch()
        batch.put(BARRIER, node, b"{}")
        batch.delete(BARRIER, node)
        await self._log.commit(batch)
        early, self._early = self._early or [], None
        for change in early:
            self._records(change)
        self._after()
        for change in early:
            self._appended(change)

    def stop(self) -> None:
        self._stopped = True

    def _heard(self, change: Change) -> None:
        if self._early is not None:
            self._early.append(change)
        elif not self._stopped:
            if change.records:
                self._records(change)
                self._after()
            self._appended(change)

    def _records(self, change: Change) -> None:
        for record in change.records:
            listener = self._listeners.get(record.space)
            if listener is not None:
                listener(record)

    def _appended(self, change: Change) -> None:
        for each in change.appended:
            if not change.own:
                self._show(each.topic, each.partition, each.last)
                continue
            if not self._own:
                self._loop.schedule(OWN_EVENTS_MS, self._show_own, None, ref=False)
            self._own[each.topic, each.partition] = each.last

    def _show_own(self, _: None) -> None:
        own, self._own = self._own, {}
        for (topic, partition), last in own.items():
            self._show(topic, partition, last)

    def _show(self, name: str, partition: int, last: int) -> None:
        topic = self._topics.found(name)
        if partition < len(topic.tails) and topic.tails[partition].offset < last:
            topic.tails[partition].advance(last)
            self._delivery.appended(topic)
