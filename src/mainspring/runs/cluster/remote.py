"""Runs that are executed by other nodes: hearing how they end, and talking to them.

Everything goes through the log. A handle of a run elsewhere is told when the run's record says how it ended; a signal,
or the wish to cancel, is a record that the owner finds. Nodes need no connection to each other. Where the log brings
news of what others write, they are heard at once; on a log of its own a node looks now and then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from mainspring.log import ABSENT, ANY_VERSION, Batch, Guard, InDoubt, KeptRecord, Log, Put, Refused
from mainspring.runs.context import Context
from mainspring.runs.durable.records import (
    LIVE,
    RECEIVED,
    RUNS,
    SIGNALS,
    RunRecord,
    decode_record,
    reason_json,
    signal_key,
)
from mainspring.runs.durable.store import Store
from mainspring.runs.errors import RunError
from mainspring.runs.outcome import Outcome
from mainspring.runs.run import Run
from mainspring.runs.scheduler import Scheduler
from mainspring.runs.signals import Mailboxes
from mainspring.runs.values import decode, encode

if TYPE_CHECKING:
    from mainspring.runs.cluster.refusals import Refusals

CANCEL: Final = "~cancel"  # no signal of a user is called so: ~ is not allowed in their names


class Elsewhere:
    """Watched handles, and signals on their way."""

    def __init__(
        self,
        log: Log,
        store: Store,
        scheduler: Scheduler,
        mailboxes: Mailboxes,
        runs: dict[str, Run[Any]],
        outcome: Callable[[RunRecord], Outcome[Any] | None],
        sender: Callable[[], str],
        refusals: Refusals | None,
    ) -> None:
        """`sender` tells this node's signals from others'; `refusals` is given where several nodes share the log."""
        self._log = log
        self._store = store
        self._sender = sender
        self._refusals = refusals
        self._scheduler = scheduler
        self._mailboxes = mailboxes
        self._runs = runs
        self._outcome = outcome
        self._watched: dict[str, list[Run[Any]]] = {}
        self._delivered: dict[str, set[str]] = {}  # what each run got, by the keys of its records
        self._early: dict[str, list[KeptRecord]] = {}  # news about runs that are being loaded
        self._looking: set[str] = set()
        self._sent = 0
        scheduler.on_outcome.append(self._tell)

    # -- watching

    def watch(self, handle: Run[Any], *, look: bool = True) -> None:
        """Tell this handle when the run has ended; `look` whether it has already."""
        self._delivered.pop(handle.id, None)
        self._watched.setdefault(handle.id, []).append(handle)
        if look and self._refusals is not None and handle.id not in self._looking:
            self._looking.add(handle.id)
            self._refusals.in_background(self._look_at(handle.id))

    def _tell(self, run: Run[Any], outcome: Outcome[Any]) -> None:
        self._delivered.pop(run.id, None)
        for handle in self._watched.pop(run.id, ()):
            self._scheduler.conclude(handle, outcome)

    async def _look_at(self, run_id: str) -> None:
        assert self._refusals is not None
        found = await self._refusals.insist(lambda: self._log.get(RUNS, run_id))
        self._looking.discard(run_id)
        if found is not None:
            self._ended(run_id, found.value)

    def _ended(self, run_id: str, record: bytes) -> None:
        outcome = self._outcome(decode_record(record))
        if outcome is not None:
            for handle in self._watched.pop(run_id, ()):
                self._scheduler.conclude(handle, outcome)

    async def look_at_watched(self) -> None:
        """Tell the handles of runs that ended elsewhere."""
        for run_id in list(self._watched):
            found = await self._log.get(RUNS, run_id)
            if found is not None:
                self._ended(run_id, found.value)

    def hear(self, record: KeptRecord) -> None:
        """News from a log that several nodes share: of a run that ended, or of a signal."""
        if record.space == RUNS:
            if record.key in self._watched and record.version != ABSENT:
                self._ended(record.key, record.value)
            return
        run_id, name, _ = record.key.split("#", 2)
        if record.value == RECEIVED:
            self._delivered.get(run_id, set()).discard(record.key)
        else:
            run = self._runs.get(run_id)
            if run_id in self._early:
                self._early[run_id].append(record)
            elif run is not None and run._durable is not None and run._durable.opened:
                self.deliver(run, record.key, name, decode(record.value))

    def keep_news_of(self, run_ids: Iterable[str]) -> None:
        """These runs are being loaded: what is heard about them meanwhile is for later."""
        for run_id in run_ids:
            self._early.setdefault(run_id, [])

    def give_news_of(self, run_ids: Iterable[str]) -> None:
        """They are loaded, or will not be."""
        for run_id in run_ids:
            for record in self._early.pop(run_id, ()):
                self.hear(record)

    # -- signals

    async def signal(self, run_id: str, name: str, value: Any) -> bool:
        """Send a value to a run, wherever it is executed. Durable when this returns; False if the run is over."""
        return await self._send(run_id, *self._new_signal(run_id, name, value), name)

    async def signal_from(self, ctx: Context, run_id: str, name: str, value: Any) -> bool:
        """`signal` by a run: from a durable one it is sent exactly once, because it is stored with the answer."""
        if not ctx.durable:
            return await self.signal(run_id, name, value)
        key, text = self._new_signal(run_id, name, value)
        if await self._store.live(run_id) is None:
            return False
        ctx.batch.put(SIGNALS, key, text, expect=self._unsent)
        ctx.after_commit(lambda receipt: self._stored(run_id, key, name, text))
        return True

    async def cancel(self, run_id: str, reason: Any) -> bool:
        """Ask whoever executes the run to cancel it; False if it is over."""
        return await self._send(run_id, self._key(run_id, CANCEL), bytes(reason_json(reason)), CANCEL)

    def _new_signal(self, run_id: str, name: str, value: Any) -> tuple[str, bytes]:
        if not isinstance(name, str) or not name or "#" in name or "~" in name:
            raise RunError(f"a signal cannot be named {name!r}", remedy="leave out # and ~")
        return self._key(run_id, name), encode(value, "value")

    def _key(self, run_id: str, name: str) -> str:
        self._sent += 1
        return signal_key(run_id, name, self._scheduler.clock.wall_ms(), self._sent, self._sender())

    @property
    def _unsent(self) -> int:
        """The version of a signal's record before it is sent. Received ones leave an empty row on a shared log."""
        return ANY_VERSION if self._refusals is None else ABSENT

    async def _send(self, run_id: str, key: str, text: bytes, name: str) -> bool:
        put, in_doubt = Put(SIGNALS, key, text, self._unsent), False
        while (live := await self._store.live(run_id)) is not None:
            try:
                await self._log.commit(Batch([Guard(LIVE, run_id, live.version), put]))
            except Refused:
                if in_doubt and await self._log.get(SIGNALS, key) is not None:
                    return True
                continue  # the run changed between the look and the write: perhaps it is over now
            except InDoubt:
                if self._refusals is None:
                    raise
                in_doubt = True
                await self._refusals.pause()
                continue
            self._stored(run_id, key, name, text)
            return True
        return in_doubt and await self._log.get(SIGNALS, key) is not None

    def _stored(self, run_id: str, key: str, name: str, text: bytes) -> None:
        run = self._runs.get(run_id)
        if run is not None and self._refusals is None:  # else the news have brought it, and perhaps it is received
            self.deliver(run, key, name, decode(text))

    def deliver(self, run: Run[Any], key: str, name: str, value: Any) -> None:
        """Give a stored signal to a run of this process, once."""
        if run._done:
            return
        if name == CANCEL:
            self._scheduler.timer(0, lambda: _cancel(run, key, value))
            return
        delivered = self._delivered.setdefault(run.id, set())
        if key not in delivered:
            delivered.add(key)
            self._mailboxes.deliver(run, name, value, key)

    def begin(self, run: Run[Any]) -> None:
        """A run is executed anew: what was given to an earlier execution of it here does not count."""
        self._delivered.pop(run.id, None)

    async def look_at_signals(self) -> None:
        """Deliver the signals that other nodes sent to runs of this one; forget those that were received."""
        waiting: dict[str, set[str]] = {}
        async for record in self._log.scan(SIGNALS):
            run_id, name, _ = record.key.split("#", 2)
            waiting.setdefault(run_id, set()).add(record.key)
            run = self._runs.get(run_id)
            is_here = run is not None and run._durable is not None and run._durable.opened
            if run is not None and is_here and record.value != RECEIVED:  # left by nodes that shared the log
                self.deliver(run, record.key, name, decode(record.value))
        for run_id, keys in tuple(self._delivered.items()):
            keys &= waiting.get(run_id, set())


def _cancel(run: Run[Any], key: str, reason: Any) -> None:
    """The wish goes with the outcome: a run that is retried later must not find it."""
    if run._durable is not None:
        run._durable.cancelled_by = key
    run.cancel(reason)
