"""Deliberate faults of the code: what the simulator must find. Each is a patch that is undone at the end of a block."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from mainspring.beats import Heartbeat
from mainspring.bus import Bus, task_calls
from mainspring.bus.groups import dead_letters, group, registry
from mainspring.bus.publishing import publisher
from mainspring.bus.schedules import schedules
from mainspring.bus.topics import compaction
from mainspring.bus.topics import registry as topics
from mainspring.client import request_reply, subscription
from mainspring.kernel.durable import timers as durable_timers
from mainspring.log import Append, Batch, Log, Put, Receipt
from mainspring.outbox import drainer
from mainspring.runs.durable import durable_runs, writer
from mainspring.runs.durable.records import UPDATES

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


def stamps_before_sending() -> Any:
    send = drainer.Drainer._send

    def early(self: Any, rows: Sequence[Any]) -> None:
        self.store.sent([(row, "0:1") for row in rows], self.clock.wall_ms())
        send(self, rows)

    return patched(drainer.Drainer, "_send", early)


def sends_a_row_under_another_id_each_time() -> Any:
    numbers = itertools.count()

    def event(row: Any) -> bytes:
        return msgspec.json.encode({"id": f"{row.id}/{next(numbers)}", "key": row.key, "payload": {}})

    return patched(drainer, "_event", event)


def fires_while_paused() -> Any:
    async def nothing(self: Any, name: str) -> Any:
        return self.get(name)

    return patched(schedules.Schedules, "pause", nothing)


def forgets_a_firing() -> Any:
    """The next time is stored, the event now and then is not."""
    commit, count = Log.commit, itertools.count(1)

    async def forgetful(self: Log, batch: Batch) -> Any:
        fires = any(isinstance(each, Append) and each.topic.startswith("schedules.") for each in batch.operations)
        if not fires or next(count) % 7:
            return await commit(self, batch)
        kept = Batch([each for each in batch.operations if not isinstance(each, Append)])
        receipt = await commit(self, kept)
        return Receipt(((0, 0, True),), receipt.versions)

    return patched(Log, "commit", forgetful)


def retention_takes_one_too_many() -> Any:
    trim = Log.trim

    async def more(self: Log, topic: str, partition: int, below: int) -> None:
        await trim(self, topic, partition, below + 1)

    return patched(Log, "trim", more)


def compaction_takes_the_newest() -> Any:
    newest = compaction.Compaction._newest

    async def behind(self: Any, *asked: Any) -> Any:
        found, end = await newest(self, *asked)
        return {key: offset + 1 for key, offset in found.items()}, end

    return patched(compaction.Compaction, "_newest", behind)


def moves_no_group() -> Any:
    async def nothing(self: Any, group: Any, starts: Any) -> None: ...

    return patched(registry.GroupRegistry, "_move", nothing)


def ignores_what_a_publisher_expects() -> Any:
    submit = Log.submit

    def regardless(self: Log, batch: Batch, callback: Any) -> None:
        batch.operations[:] = [
            msgspec.structs.replace(each, expect=None) if isinstance(each, Append) else each
            for each in batch.operations
        ]
        submit(self, batch, callback)

    return patched(Log, "submit", regardless)


def says_cancelled_and_goes_on() -> Any:
    async def nothing(self: Any, run_id: str, reason: Any = None) -> bool:
        return True

    return patched(durable_runs.DurableRuns, "cancel", nothing)


def drops_what_is_rejected() -> Any:
    """As if it had been acknowledged."""

    def reject(self: Any, reason: str = "") -> Any:
        return self.ack()

    return patched(subscription.Event, "reject", reject)


def forgets_updates_of_runs() -> Any:
    """They change the run in memory, and are not stored."""
    note = writer.JournalWriter.note

    def forgetful(self: Any, operation: Any) -> None:
        if not (isinstance(operation, Put) and operation.space == UPDATES):
            note(self, operation)

    return patched(writer.JournalWriter, "note", forgetful)


def stores_a_batch_in_two_commits() -> Any:
    publish = Bus.publish_batch

    async def in_two(self: Any, topic: str, events: Sequence[Any], *, agent: Any = None) -> Any:
        first = await publish(self, topic, events[:1], agent=agent)
        await asyncio.sleep(1)
        return [*first, *await publish(self, topic, events[1:], agent=agent)]

    return patched(Bus, "publish_batch", in_two)


def keeps_a_letter_that_was_sent_to_all() -> Any:
    remove = dead_letters._remove

    def unless_sent(batch: Batch, topic: str, letters: Sequence[Any]) -> None:
        if not any(isinstance(each, Append) for each in batch.operations):
            remove(batch, topic, letters)

    return patched(dead_letters, "_remove", unless_sent)


def purges_nothing() -> Any:
    async def nothing(self: Any, topic: Any) -> int:
        return 0

    return patched(topics.TopicRegistry, "purge", nothing)


def purges_what_comes_next() -> Any:
    trim, later = Log.trim, set()

    async def more(self: Log, topic: str, partition: int, below: int) -> None:
        await trim(self, topic, partition, below)
        if topic.startswith("purged."):
            later.add(asyncio.create_task(trim_all(self, topic, partition)))

    async def trim_all(log: Log, topic: str, partition: int) -> None:
        await asyncio.sleep(0.5)
        await trim(log, topic, partition, 10**6)

    return patched(Log, "trim", more)


def changes_only_the_first_run() -> Any:
    cancel = durable_runs.DurableRuns.cancel

    async def first(self: Any, run_id: str, *rest: Any) -> Any:
        return True if run_id.endswith("-1") else await cancel(self, run_id, *rest)

    return patched(durable_runs.DurableRuns, "cancel", first)


def forgets_signals_to_the_beats() -> Any:
    def nothing(self: Any, signal: Any, target: Any = None, beat: Any = None) -> int:
        return int(self.next_beat)

    return patched(Heartbeat, "signal", nothing)


def keeps_runs_that_were_forgotten() -> Any:
    async def nothing(self: Any, run_id: str) -> int:
        return 1

    return patched(durable_runs.DurableRuns, "forget", nothing)


def keeps_the_settings_of_a_topic() -> Any:
    put = topics.TopicRegistry.put

    async def as_before(self: Any, config: Any) -> Any:
        known = self.find(config.topic)
        if known is not None and config.topic.startswith("purged."):
            config = msgspec.structs.replace(config, max_attempts=known.config.max_attempts)
        return await put(self, config)

    return patched(topics.TopicRegistry, "put", as_before)


def forgets_replies() -> Any:
    async def nothing(client: Any, request: Any, payload: Any, error: str = "") -> None: ...

    return patched(request_reply, "reply", nothing)


def keeps_groups_that_were_deleted() -> Any:
    async def nothing(self: Any, topic: str, name: str) -> None: ...

    return patched(registry.GroupRegistry, "delete", nothing)


def retries_no_calls() -> Any:
    async def nothing(self: Any, name: str, wanted: Any, *, who: Any = None) -> task_calls.ChangedCalls:
        return task_calls.ChangedCalls(name, 1, {})

    return patched(task_calls.TaskCalls, "retry", nothing)


def forgets_timers_of_its_last_life() -> Any:
    async def nothing(self: Any) -> None: ...

    return patched(durable_timers.DurableTimers, "_take_over", nothing)


MUTANTS: tuple[Mutant, ...] = (
    answers_before_the_commit,
    forgets_publish_ids,
    never_ends_a_lease,
    fires_in_two_commits,
    settles_without_the_letter,
    acknowledges_one_too_many,
    one_attempt_more,
    stamps_before_sending,
    sends_a_row_under_another_id_each_time,
    fires_while_paused,
    forgets_a_firing,
    retention_takes_one_too_many,
    compaction_takes_the_newest,
    moves_no_group,
    ignores_what_a_publisher_expects,
    says_cancelled_and_goes_on,
    drops_what_is_rejected,
    forgets_updates_of_runs,
    stores_a_batch_in_two_commits,
    keeps_a_letter_that_was_sent_to_all,
    purges_nothing,
    purges_what_comes_next,
    changes_only_the_first_run,
    forgets_replies,
    forgets_signals_to_the_beats,
    keeps_runs_that_were_forgotten,
    keeps_the_settings_of_a_topic,
    keeps_groups_that_were_deleted,
    retries_no_calls,
    forgets_timers_of_its_last_life,
)
