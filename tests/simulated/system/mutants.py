"""Deliberate faults of the code: what the simulator must find. Each is a patch that is undone at the end of a block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from mainspring.bus.groups import dead_letters, group
from mainspring.bus.publishing import publisher
from mainspring.bus.schedules import schedules
from mainspring.log import Append, Batch, Log

Mutant = Callable[[], Any]


@contextmanager
def patched(owner: Any, name: str, by: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, by)
    try:
        yield
    finally:
        setattr(owner, name, before)


def answers_before_the_commit() -> Any:
    def submit(self: Any, pending: Any) -> None:
        tails: dict[Any, int] = {}
        placed = []
        for append in pending.appends:
            tail = pending.topics[append.topic].tails[append.partition]
            tails[tail] = tails.get(tail, tail.offset) + 1
            placed.append((append.partition, tails[tail], False))
        waiting, pending.waiting = pending.waiting, []
        self._under_way += 1
        self.log.submit(pending.batch, lambda result: self._decided(pending, result))
        for on_done, start, count in waiting:
            on_done(placed[start : start + count])

    return patched(publisher.Publisher, "_submit", submit)


def forgets_publish_ids() -> Any:
    submit = Log.submit

    def forgetful(self: Log, batch: Batch, callback: Any) -> None:
        batch.operations[:] = [
            msgspec.structs.replace(each, dedupe=None) if isinstance(each, Append) else each
            for each in batch.operations
        ]
        submit(self, batch, callback)

    return patched(Log, "submit", forgetful)


def never_ends_a_lease() -> Any:
    return patched(group.Group, "_end_expired_leases", lambda self, now: 0)


def fires_in_two_commits() -> Any:
    async def publish(self: Any, schedule: Any, version: int, now: int, batch: Batch) -> Any:
        moved = msgspec.structs.replace(schedule, last_ms=now)
        batch.put(schedules.SPACE, schedules.NAMED + schedule.name, msgspec.json.encode(moved), expect=version)
        first = await self._log.commit(batch)
        topic = self._topics.find_or_add(schedule.topic)
        event = self._admission.own_event(topic, bytes(schedule.payload), schedule.key, schedule.headers)
        accepted = schedules.Accepted(topic, [event])
        second = Batch()
        stored = schedules.add_prepared(second, [self._publisher.prepare(accepted)])
        receipt = await self._log.commit(second)
        stored(receipt)
        self._keep(moved, first.versions[0])
        return accepted.published(receipt.offsets)[0]

    return patched(schedules.Schedules, "_publish", publish)


def settles_without_the_letter() -> Any:
    submit = dead_letters.DeadLetterWriter._submit

    def without(self: Any, position: Any, events: Sequence[Any], stored: Sequence[Any]) -> None:
        submit(self, position, events, stored[1:])

    return patched(dead_letters.DeadLetterWriter, "_submit", without)


def acknowledges_one_too_many() -> Any:
    ack = group.Group.ack

    def more(self: Any, member: Any, partition: int, offset: int) -> Any:
        held = member.held.get(partition, {})
        following = min((each for each in held if each > offset), default=None)
        ack(self, member, partition, offset)
        if following is not None:
            ack(self, member, partition, following)

    return patched(group.Group, "ack", more)


def one_attempt_more() -> Any:
    def exhausted(self: Any, event: Any) -> bool:
        return bool(self.max_attempts) and event.deliveries > self.max_attempts

    return patched(group.Group, "_is_exhausted", exhausted)


MUTANTS: tuple[Mutant, ...] = (
    answers_before_the_commit,
    forgets_publish_ids,
    never_ends_a_lease,
    fires_in_two_commits,
    settles_without_the_letter,
    acknowledges_one_too_many,
    one_attempt_more,
)
