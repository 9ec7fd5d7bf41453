"""Where signals come from besides `signal`: inlets, which are asked at the start of each beat.

What an inlet gives to a beat is taken with the beat: the operations it names (a group's new position, say) are
stored in the beat's own batch. So each event becomes a signal exactly once, although the process may die anywhere. When
the beat does not happen, nothing was taken and the same is given to the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from mainspring.beats.errors import InvalidImpulse, InvalidPath, InvalidValue
from mainspring.beats.lineage import SignalOrigin, origin_of_event
from mainspring.beats.matching.path import canonical
from mainspring.beats.storage.cells import to_text
from mainspring.beats.storage.journal import Cause, Impulse
from mainspring.log import Log, Operation, Put, StoredEvent


class Taken(msgspec.Struct, frozen=True):
    """What an inlet gives to one beat.

    `events` are values that can be read, while their signal is worked on, at the signal's own path: path and canonical
    JSON. `operations` go into the beat's batch. `origins` say in whose name a signal comes, by its path.
    """

    impulses: Sequence[Impulse]
    events: dict[str, str] = {}
    operations: Sequence[Operation] = ()
    origins: dict[str, SignalOrigin] = {}


class Inlet(Protocol):
    """A source of signals that is asked at the start of each beat."""

    async def take(self, limit: int) -> Taken:
        """At most `limit` signals. Must give the same again until `settle` is called."""

    def settle(self, taken: Taken) -> None:
        """The beat happened: what was taken is gone for good."""

    # Where several nodes share a log, an inlet that remembers how far it got also has `forget(self) -> None`: others
    # may have run beats since, and what it remembers must be read again.


POSITIONS: Final = "beats.positions"  # a space of its own: the bus reads every record of its groups


class TopicInlet:
    """Each event of a topic is one signal.

    The signal is the event's own path, /topics/<topic>/<partition>/<offset>, and enzymes read the event there:
    `stage.read(signal)` gives {id, ts, key, payload, headers}. Register with a prefix query, /topics/<topic>. `target`
    may name a target for an event; without it the signal is a broadcast.
    """

    def __init__(
        self,
        log: Log,
        topic: str,
        *,
        line: str = "main",
        target: Callable[[StoredEvent], str | None] | None = None,
    ) -> None:
        self.topic = topic
        self._log = log
        self._target = target
        self._group = f"beats.{line}"
        self._path = topic_path(topic)
        self._next: dict[int, int] = {}

    async def take(self, limit: int) -> Taken:
        impulses: list[Impulse] = []
        events: dict[str, str] = {}
        operations: list[Operation] = []
        origins: dict[str, SignalOrigin] = {}
        for bounds in await self._log.bounds(self.topic):
            start = max(await self._position(bounds.partition), bounds.head)
            if start > bounds.tail or limit <= len(impulses):
                continue
            read = await self._log.read(self.topic, bounds.partition, start, limit - len(impulses))
            for event in read:
                path = f"{self._path}/{event.partition}/{event.offset}"
                source = f"{self.topic}/{event.partition}@{event.offset}"
                target = self._target_of(event, source)
                impulses.append(Impulse(path, target, Cause("topic", source=source), event=True))
                events[path] = event_text(event)
                origins[path] = origin_of_event(event)
            if read:
                operations.append(self._move_to(bounds.partition, read[-1].offset + 1))
        return Taken(impulses, events, operations, origins)

    def _target_of(self, event: StoredEvent, source: str) -> str | None:
        if self._target is None:
            return None
        try:
            target = self._target(event)
            return None if target is None else canonical(target)
        except Exception as error:
            # Without its target the signal would mean something else, so the event waits, and all others behind it.
            raise InvalidImpulse(
                f"the target of event {source} cannot be determined: {error!r}",
                remedy="correct the function that names targets; nothing is lost meanwhile",
            ) from error

    def settle(self, taken: Taken) -> None:
        for operation in taken.operations:
            if isinstance(operation, Put):
                position = msgspec.json.decode(operation.value, type=dict[str, int])
                self._next[position["partition"]] = position["next"]

    def forget(self) -> None:
        """Others may have taken events since: the positions in the log count."""
        self._next.clear()

    async def _position(self, partition: int) -> int:
        if partition not in self._next:
            record = await self._log.get(POSITIONS, self._key(partition))
            stored = msgspec.json.decode(record.value, type=dict[str, int]) if record is not None else {"next": 1}
            self._next[partition] = stored["next"]
        return self._next[partition]

    def _move_to(self, partition: int, offset: int) -> Put:
        return Put(POSITIONS, self._key(partition), msgspec.json.encode({"next": offset, "partition": partition}))

    def _key(self, partition: int) -> str:
        return f"{self._group}/{self.topic}/{partition:06d}"


def topic_path(topic: str) -> str:
    """The path below which a topic's events stand; dots and slashes of the name stay as they are."""
    try:
        return canonical(f"/topics/{topic}")
    except InvalidPath as error:
        raise InvalidPath(f"topic {topic!r} cannot be a path", remedy="feed it with signal() instead") from error


def event_text(event: StoredEvent) -> str:
    """The canonical text of an event. A payload that no cell could hold is given as the text it is."""
    parts = {
        "id": to_text(event.id),
        "ts": to_text(event.ts),
        "key": to_text(event.key),
        "payload": _kept(event.payload),
    }
    if event.headers is not None:
        parts["headers"] = _kept(event.headers)
    return "{" + ",".join(f'"{name}":{parts[name]}' for name in sorted(parts)) + "}"


def _kept(data: bytes) -> str:
    # The beat that takes it must come to an end in any case: the event would stand before all others.
    try:
        return to_text(msgspec.json.decode(data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, InvalidValue):
        return to_text(data.decode(errors="replace"))
