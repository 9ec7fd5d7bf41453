"""All nodes' commits, as the log reports them, brought to the tables of this node.

Topics, schemas and schedules that another node stored appear here; events that another node appended move the tails and
wake the groups that wait for them; positions, claims and presences go to the supply.

A table is read at start by scans, and a scan is not one moment in time. So the changes of that time are kept, and
repeated in their order when the tables are read. A commit of this node's own comes last: when it is back, every commit
before it has been reported, and the tables say what the log held at one moment.

Events of this node's own are shown by their publisher, after it was answered. When its answer was lost it cannot do
that; then the feed does it, a little later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mainspring.bus.groups.delivery import Delivery
from mainspring.bus.groups.supply import OnRecordChanged
from mainspring.bus.topics.registry import TopicRegistry
from mainspring.log import Batch, Change, Log
from mainspring.loop import Loop

OWN_EVENTS_MS = 50  # by then the publisher has shown them, if it was answered at all
BARRIER = "barrier"


class ChangeFeed:
    """Hands out the log's changes. `after` is called when all records of one commit were handed out."""

    def __init__(
        self, log: Log, loop: Loop, topics: TopicRegistry, delivery: Delivery, after: Callable[[], None]
    ) -> None:
        self._log = log
        self._loop = loop
        self._topics = topics
        self._delivery = delivery
        self._after = after
        self._listeners: Mapping[str, OnRecordChanged] = {}
        self._early: list[Change] | None = []
        self._own: dict[tuple[str, int], int] = {}
        self._stopped = False

    def listen(self, listeners: Mapping[str, OnRecordChanged]) -> None:
        """From now on; before anything is read."""
        self._listeners = listeners
        self._log.watch(self._on_change)

    async def catch_up(self, node: str) -> None:
        """All tables are read: repeat what came meanwhile."""
        batch = Batch()
        batch.put(BARRIER, node, b"{}")
        batch.delete(BARRIER, node)
        await self._log.commit(batch)
        early, self._early = self._early or [], None
        for change in early:
            self._show_records(change)
        self._after()
        for change in early:
            self._show_appended(change)

    def stop(self) -> None:
        self._stopped = True

    def _on_change(self, change: Change) -> None:
        if self._early is not None:
            self._early.append(change)
        elif not self._stopped:
            if change.records:
                self._show_records(change)
                self._after()
            self._show_appended(change)

    def _show_records(self, change: Change) -> None:
        for record in change.records:
            listener = self._listeners.get(record.space)
            if listener is not None:
                listener(record)

    def _show_appended(self, change: Change) -> None:
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
        topic = self._topics.find_or_add(name)
        if partition < len(topic.tails) and topic.tails[partition].offset < last:
            topic.tails[partition].advance(last)
            self._delivery.appended(topic)
