"""Signals to durable runs, and requests to cancel them: records that the node which executes the run receives.

A signal is durable when it is sent: a record in the log, guarded by the record of the unfinished run. The node that
executes the run puts it into the run's mailbox (`signals.py` of this package) and removes it with the answer that
consumed it. Where several nodes share the log, its change feed brings what others sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from mainspring.log import ABSENT, Batch, Delete, Guard, InDoubt, Put, Refused
from mainspring.runs.durable.records import LIVE, SIGNALS, signal_key
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

BY_HAND: Final = "it was failed by hand"


class DurableSignals:
    """Sends signals through the log, and delivers each to its run once."""

    def __init__(self, durable: DurableRuns, mailboxes: Mailboxes, runs: dict[str, Run[Any]]) -> None:
        self._durable = durable
        self._ownership = durable.ownership
        self._mailboxes = mailboxes
        self._runs = runs
        self._delivered: dict[str, set[str]] = {}  # what each run got, by the keys of its records
        self._arrived_early: dict[str, list[tuple[str, bytes]]] = {}  # for runs that are being loaded, by their ids
        self._sent = 0

    # -- sending

    async def send(self, run_id: str, name: str, value: Any) -> bool:
        """Send a value to a run, wherever it is executed. Durable when this returns; False if the run is over."""
        return await self._send(run_id, *self._new(run_id, name, value))

    async def send_from(self, ctx: EffectContext, run_id: str, name: str, value: Any) -> bool:
        """`send` by a run: from a durable one it is sent exactly once, because it is stored with the answer."""
        if not ctx.durable:
            return await self.send(run_id, name, value)
        key, text = self._new(run_id, name, value)
        if await self._durable.store.live(run_id) is None:
            return False
        ctx.batch.put(SIGNALS, key, text, expect=self._ownership.expected(ABSENT))
        ctx.after_commit(lambda receipt: self._ownership.signal_stored(key, text))
        return True

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

    async def _send(self, run_id: str, key: str, text: bytes) -> bool:
        log, put, in_doubt = self._durable.log, Put(SIGNALS, key, text, self._ownership.expected(ABSENT)), False
        while (live := await self._durable.store.live(run_id)) is not None:
            try:
                await log.commit(Batch([Guard(LIVE, run_id, live.version), put]))
            except Refused:
                if in_doubt and await log.get(SIGNALS, key) is not None:
                    return True
                continue  # the run changed between the look and the write: perhaps it is over now
            except InDoubt:
                in_doubt = True
                await self._ownership.pause()
                continue
            self._ownership.signal_stored(key, text)
            return True
        return in_doubt and await log.get(SIGNALS, key) is not None

    # -- receiving

    def arrived(self, key: str, text: bytes) -> None:
        """A signal was stored: deliver it if its run is executed here, or will be once it is loaded."""
        run_id, name, _ = key.split("#", 2)
        run = self._runs.get(run_id)
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
