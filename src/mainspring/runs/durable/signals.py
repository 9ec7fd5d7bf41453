"""Signals to durable runs, and requests to cancel them: records that the node which executes the run receives.

A signal is durable when it is sent: a record in the log, guarded by the record of the unfinished run. The node that
executes the run puts it into the run's mailbox (`signals.py` of this package) and removes it with the answer that
consumed it. Where several nodes share the log, its change feed brings what others sent.

A signal to a run that has not started is kept for it, for a time: the space `runs/early` has the ids of such runs, so
that a run which starts need not look for signals unless some wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring.log import ABSENT, ANY_VERSION, Batch, Delete, Guard, InDoubt, KeptRecord, Operation, Put, Refused
from mainspring.runs.durable.records import (
    EARLY,
    LIVE,
    RECEIVED,
    RUNS,
    SIGNALS,
    EarlySignals,
    check_id,
    encode_record,
    signal_key,
)
from mainspring.runs.durable.store import CHILD_MARK
from mainspring.runs.errors import FailedByHand, RunError
from mainspring.runs.handlers import EffectContext
from mainspring.runs.run import Failed, Run
from mainspring.runs.signals import Mailboxes
from mainspring.runs.values import decode, encode, reason_json

if TYPE_CHECKING:
    from mainspring.runs.durable.durable_runs import DurableRuns

CANCEL: Final = "~cancel"  # no signal of a user has such a name: ~ is not allowed there
FAIL: Final = "~fail"
RETRY: Final = "~retry"

MOST_EARLY: Final = 100  # signals that are kept for one run that has not started
BY_HAND: Final = "it was failed by hand"


class DurableSignals:
    """Sends signals through the log, and delivers each to its run once."""

    def __init__(self, durable: DurableRuns, mailboxes: Mailboxes, runs: dict[str, Run[Any]], early_ms: int) -> None:
        """`early_ms` is how long signals to a run that has not started are kept; 0: they are not."""
        self.early: set[str] = set()  # runs that have not started and have signals
        self._early_ms = early_ms
        self._durable = durable
        self._ownership = durable.ownership
        self._mailboxes = mailboxes
        self._runs = runs
        self._delivered: dict[str, set[str]] = {}  # what each run got, by the keys of its records
        self._arrived_early: dict[str, list[tuple[str, bytes]]] = {}  # for runs that are being loaded, by their ids
        self._sent = 0

    # -- sending

    async def send(self, run_id: str, name: str, value: Any) -> bool:
        """Send a value to a run, wherever it is executed. Durable when this returns; False if the run is over.

        For a run that has not started it is kept until it does.
        """
        return await self._send(run_id, *self._new(run_id, name, value), early=self._may_be_early(run_id))

    async def send_from(self, ctx: EffectContext, run_id: str, name: str, value: Any) -> bool:
        """`send` by a run: from a durable one it is sent exactly once, because it is stored with the answer."""
        if not ctx.durable:
            return await self.send(run_id, name, value)
        key, text = self._new(run_id, name, value)
        is_early = await self._durable.store.live(run_id) is None
        if is_early:
            if not self._may_be_early(run_id) or await self._durable.log.get(RUNS, run_id) is not None:
                return False
            ctx.batch.operations.append(msgspec.structs.replace(await self._one_more(run_id), expect=ANY_VERSION))
        ctx.batch.put(SIGNALS, key, text, expect=self._ownership.expected(ABSENT))
        ctx.after_commit(lambda receipt: self._sent_one(run_id, key, text, is_early))
        return True

    def _sent_one(self, run_id: str, key: str, text: bytes, is_early: bool) -> None:
        if is_early:
            self.early.add(run_id)
        self._ownership.signal_stored(key, text)

    async def request(self, run_id: str, name: str, value: Any) -> bool:
        """Ask the node that executes the run to do something to it (CANCEL, FAIL, RETRY); False if it is over."""
        return await self._send(run_id, self._key(run_id, name), bytes(reason_json(value)))

    def _new(self, run_id: str, name: str, value: Any) -> tuple[str, bytes]:
        if not isinstance(name, str) or not name or "#" in name or "~" in name:
            raise RunError(f"a signal cannot be named {name!r}", remedy="leave out # and ~")
        return self._key(run_id, name), encode(value, "value")

    def _key(self, run_id: str, name: str) -> str:
        self._sent += 1
        return signal_key(run_id, name, self._durable.clock.wall_ms(), self._sent, self._ownership.sender)

    async def _send(self, run_id: str, key: str, text: bytes, *, early: bool = False) -> bool:
        log, put, in_doubt = self._durable.log, Put(SIGNALS, key, text, self._ownership.expected(ABSENT)), False
        while True:
            live = await self._durable.store.live(run_id)
            if live is None and (not early or await log.get(RUNS, run_id) is not None):
                break
            guards = [Guard(LIVE, run_id, ABSENT if live is None else live.version)]
            others: list[Operation] = []
            if live is None:
                others = [Guard(RUNS, run_id, ABSENT), await self._one_more(run_id)]
            try:
                await log.commit(Batch([*guards, *others, put]))
            except Refused:
                if in_doubt and await log.get(SIGNALS, key) is not None:
                    return True
                continue  # the run changed between the look and the write: perhaps it is over now
            except InDoubt:
                in_doubt = True
                await self._ownership.pause()
                continue
            self._sent_one(run_id, key, text, live is None)
            return True
        return in_doubt and await log.get(SIGNALS, key) is not None

    # -- before the run starts

    def _may_be_early(self, run_id: str) -> bool:
        """Whether somebody may start a run of this id: children are started by their parents alone."""
        if not self._early_ms or CHILD_MARK in run_id:
            return False
        check_id(run_id)
        return True

    async def _one_more(self, run_id: str) -> Put:
        """Count a signal to a run that has not started."""
        row = await self._durable.log.get(EARLY, run_id)
        kept = EarlySignals() if row is None else msgspec.json.decode(row.value, type=EarlySignals)
        if kept.count >= MOST_EARLY:
            raise RunError(
                f"run {run_id} has not started, and {MOST_EARLY} signals wait for it", remedy="start the run"
            )
        more = EarlySignals(kept.count + 1, self._durable.clock.wall_ms())
        return Put(EARLY, run_id, encode_record(more), ABSENT if row is None else row.version)

    async def load_early(self) -> None:
        """Find the runs that have not started and have signals."""
        self.early = {row.key async for row in self._durable.log.scan(EARLY)}

    def on_early(self, record: KeptRecord) -> None:
        """Another node sent a signal to a run that had not started, or such a run started there."""
        if record.version == ABSENT:
            self.early.discard(record.key)
        else:
            self.early.add(record.key)

    def give_early(self, run: Run[Any]) -> None:
        """A run has started: give it the signals that were sent before, and only then those that come."""
        self.hold([run.id])
        self._durable.in_background(self._give_early(run), f"early signals of run {run.id}")

    async def _give_early(self, run: Run[Any]) -> None:
        try:
            rows = [row async for row in self._durable.log.scan(SIGNALS, f"{run.id}#") if row.value != RECEIVED]
            for row in sorted(rows, key=lambda each: each.version):  # in the order they came
                self.deliver(run, row.key, row.key.split("#", 2)[1], decode(row.value))
        finally:
            self.release([run.id])
        self.early.discard(run.id)
        self._durable.writer.note(Delete(EARLY, run.id))

    async def forget_early(self, guard: Callable[[Batch], None]) -> None:
        """Remove signals whose run did not start in time."""
        if not self.early:
            return
        log, before = self._durable.log, self._durable.clock.wall_ms() - self._early_ms
        async for row in log.scan(EARLY):
            if msgspec.json.decode(row.value, type=EarlySignals).at >= before:
                continue
            batch = Batch()
            guard(batch)
            batch.delete(EARLY, row.key, expect=row.version)
            if await self._durable.store.live(row.key) is None and await log.get(RUNS, row.key) is None:
                batch.guard(LIVE, row.key, ABSENT)
                async for signal in log.scan(SIGNALS, f"{row.key}#"):
                    batch.delete(SIGNALS, signal.key)
            await log.commit(batch)
            self.early.discard(row.key)

    # -- receiving

    def arrived(self, key: str, text: bytes) -> None:
        """A signal was stored: deliver it if its run is executed here, or will be once it is loaded."""
        run_id, name, _ = key.split("#", 2)
        run = self._runs.get(run_id)
        if run_id in self._arrived_early:
            self._arrived_early[run_id].append((key, text))
            return
        if run is not None and run.durable is not None and run.durable.opened:
            self.deliver(run, key, name, decode(text))
            return
        loading = run_id
        while loading:  # the run itself, then those above it: they are loaded with all their children
            owner = self._runs.get(loading)
            if loading in self._arrived_early:
                self._arrived_early[loading].append((key, text))
                return
            if owner is not None and owner.durable is not None and run_id in owner.durable.children:
                owner.durable.children[run_id].signals.append((key, name, decode(text)))
                return
            loading = loading.rpartition(CHILD_MARK)[0]

    def deliver(self, run: Run[Any], key: str, name: str, value: Any) -> None:
        """Give a stored signal to a run of this process, once."""
        if run.done:
            return
        delivered = self._delivered.setdefault(run.id, set())
        if key in delivered:
            return
        delivered.add(key)
        if name in (CANCEL, FAIL, RETRY):
            self._durable.scheduler.timer(0, lambda: self._carry_out(run, key, name, value))
        else:
            self._mailboxes.deliver(run, name, value, key)

    def _carry_out(self, run: Run[Any], key: str, name: str, value: Any) -> None:
        """Do what was asked. The request goes with the outcome: a run that is retried later must not find it."""
        durable, state = self._durable, run.durable
        if run.done or state is None:
            return
        if name == RETRY:
            if run.id in durable.blocked:
                durable.in_background(durable.blocked.retry(run, value, key), f"retry run {run.id}")
            else:  # it goes on already
                durable.writer.note(Delete(SIGNALS, key))
            return
        state.cancelled_by = key
        if name == CANCEL:
            run.cancel(value)
        else:
            durable.scheduler.settle(run, Failed((None if value else state.misfit) or FailedByHand(value or BY_HAND)))

    def begin(self, run: Run[Any], loaded: Iterable[tuple[str, str, Any]]) -> None:
        """A run is executed anew: what was given to an earlier execution of it here does not count."""
        self.forget_run(run.id)
        for key, name, value in loaded:
            self.deliver(run, key, name, value)

    def forget(self, run_id: str, key: str) -> None:
        """A signal was received and will not come again."""
        self._delivered.get(run_id, set()).discard(key)

    def forget_run(self, run_id: str) -> None:
        """A run is not executed here any more."""
        self._delivered.pop(run_id, None)
        self._mailboxes.forget(run_id)

    def hold(self, run_ids: Iterable[str]) -> None:
        """Keep signals for runs that are about to be loaded, until `release`."""
        for run_id in run_ids:
            self._arrived_early.setdefault(run_id, [])

    def release(self, run_ids: Iterable[str]) -> None:
        """The runs are loaded, or will not be."""
        for run_id in run_ids:
            for key, text in self._arrived_early.pop(run_id, ()):
                self.arrived(key, text)
