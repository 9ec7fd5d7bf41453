"""Runs that are executed by other nodes: hearing how they end, and talking to them.

Everything goes through the log. A handle of a run elsewhere is told when the run's record says how it ended; a signal,
or the wish to cancel, is a record that the owner finds in its next pass. Nodes need no connection to each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from mainspring.log import Batch, Guard, Log, Put, Refused
from mainspring.runs.context import Context
from mainspring.runs.errors import RunError
from mainspring.runs.journal import LIVE, RUNS, SIGNALS, RunRecord, decode_record, reason_json, signal_key
from mainspring.runs.outcome import Outcome
from mainspring.runs.run import Run
from mainspring.runs.scheduler import Scheduler
from mainspring.runs.serial import decode, encode
from mainspring.runs.signals import Mailboxes

CANCEL: Final = "~cancel"  # no signal of a user is called so: ~ is not allowed in their names


class Elsewhere:
    """Watched handles, and signals on their way."""

    def __init__(
        self,
        log: Log,
        scheduler: Scheduler,
        mailboxes: Mailboxes,
        runs: dict[str, Run[Any]],
        outcome: Callable[[RunRecord], Outcome[Any] | None],
        node: str,
    ) -> None:
        self._log = log
        self._node = node
        self._scheduler = scheduler
        self._mailboxes = mailboxes
        self._runs = runs
        self._outcome = outcome
        self._watched: dict[str, list[Run[Any]]] = {}
        self._delivered: set[str] = set()
        self._sent = 0
        scheduler.on_outcome.append(self._tell)

    # -- watching

    def watch(self, handle: Run[Any]) -> None:
        """Tell this handle when the run has ended."""
        self._watched.setdefault(handle.id, []).append(handle)

    def _tell(self, run: Run[Any], outcome: Outcome[Any]) -> None:
        for handle in self._watched.pop(run.id, ()):
            self._scheduler.conclude(handle, outcome)

    async def look_at_watched(self) -> None:
        """Tell the handles of runs that ended elsewhere."""
        for run_id in list(self._watched):
            found = await self._log.get(RUNS, run_id)
            outcome = None if found is None else self._outcome(decode_record(found.value))
            if outcome is not None:
                for handle in self._watched.pop(run_id, ()):
                    self._scheduler.conclude(handle, outcome)

    # -- signals

    async def signal(self, run_id: str, name: str, value: Any) -> bool:
        """Send a value to a run, wherever it is executed. Durable when this returns; False if the run is over."""
        return await self._send(run_id, *self._new_signal(run_id, name, value), name)

    async def signal_from(self, ctx: Context, run_id: str, name: str, value: Any) -> bool:
        """`signal` by a run: from a durable one it is sent exactly once, because it is stored with the answer."""
        if not ctx.durable:
            return await self.signal(run_id, name, value)
        key, text = self._new_signal(run_id, name, value)
        if await self._log.get(LIVE, run_id) is None:
            return False
        ctx.batch.put(SIGNALS, key, text)
        ctx.after_commit(lambda receipt: self._stored(run_id, key, name, text))
        return True

    async def cancel(self, run_id: str, reason: Any) -> bool:
        """Ask whoever executes the run to cancel it; False if it is over."""
        return await self._send(run_id, self._key(run_id, CANCEL), bytes(reason_json(reason)), CANCEL)

    def _new_signal(self, run_id: str, name: str, value: Any) -> tuple[str, bytes]:
        if not name or "#" in name or "~" in name:
            raise RunError(f"a signal cannot be named {name!r}", remedy="leave out # and ~")
        return self._key(run_id, name), encode(value, "value")

    def _key(self, run_id: str, name: str) -> str:
        self._sent += 1
        return signal_key(run_id, name, self._scheduler.clock.wall_ms(), self._sent, self._node)

    async def _send(self, run_id: str, key: str, text: bytes, name: str) -> bool:
        while (live := await self._log.get(LIVE, run_id)) is not None:
            try:
                await self._log.commit(Batch([Guard(LIVE, run_id, live.version), Put(SIGNALS, key, text)]))
            except Refused:
                continue  # the run changed between the look and the write: perhaps it is over now
            self._stored(run_id, key, name, text)
            return True
        return False

    def _stored(self, run_id: str, key: str, name: str, text: bytes) -> None:
        run = self._runs.get(run_id)
        if run is not None:
            self.deliver(run, key, name, decode(text))

    def deliver(self, run: Run[Any], key: str, name: str, value: Any) -> None:
        """Give a stored signal to a run of this process, once."""
        if key in self._delivered or run._done:
            return
        if name == CANCEL:
            self._scheduler.timer(0, lambda: run.cancel(value))
            return
        self._delivered.add(key)
        self._mailboxes.deliver(run, name, value, key)

    async def look_at_signals(self) -> None:
        """Deliver the signals that other nodes sent to runs of this one; forget those that were received."""
        waiting = set()
        async for record in self._log.scan(SIGNALS):
            waiting.add(record.key)
            run_id, name, _ = record.key.split("#", 2)
            run = self._runs.get(run_id)
            if run is not None and run._durable is not None and run._durable.opened:
                self.deliver(run, record.key, name, decode(record.value))
        self._delivered &= waiting
