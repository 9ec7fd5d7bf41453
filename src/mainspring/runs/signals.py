"""Signals: values sent to a running run from outside, received by name.

A signal that comes before the run waits for it is kept; signals of one name are received in the order they came. In a
durable run a signal is a record in the log until the answer that consumed it is in the journal; both happen in one
batch, so a signal is received exactly once (see `durable/signals.py`).
"""

from __future__ import annotations

from collections import deque
from typing import Any

from mainspring.durations import duration_text
from mainspring.runs.effects import WaitSignal, time_left
from mainspring.runs.handlers import EffectContext, Later, context_of
from mainspring.runs.run import Run

Kept = tuple[Any, str | None]  # the value, and the key of its record for a durable run


class Mailboxes:
    """The signals of all runs of one runtime that were not received yet, and the runs that wait for one."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[str, deque[Kept]]] = {}
        self._waiting: dict[tuple[str, str], Later] = {}

    def deliver(self, run: Run[Any], name: str, value: Any, record: str | None = None) -> bool:
        """Give a signal to a live run: to the one waiting, or keep it. False when the run is over."""
        if run.done:
            return False
        boxes = self._kept.get(run.id)
        if boxes is None:
            boxes = self._kept[run.id] = {}
            run_id = run.id
            context_of(run).on_close(lambda: self._kept.pop(run_id, None))
        boxes.setdefault(name, deque()).append((value, record))
        later = self._waiting.pop((run.id, name), None)
        if later is not None:
            later.resume(self._take(run, name))
        return True

    def forget(self, run_id: str) -> None:
        """Drop what was kept for a run that is not executed here any more."""
        self._kept.pop(run_id, None)

    def _take(self, run: Run[Any], name: str) -> Any:
        value, record = self._kept[run.id][name].popleft()
        if record is not None and run.durable is not None:
            run.durable.consume(record)
        return value

    def wait(self, effect: WaitSignal, ctx: EffectContext) -> Any:
        """The handler of `WaitSignal`."""
        run, place = ctx.run, (ctx.run_id, effect.name)
        if self._kept.get(run.id, {}).get(effect.name):
            return self._take(run, effect.name)
        later = ctx.later()
        self._waiting[place] = later
        ctx.on_release(lambda: self._waiting.pop(place, None))
        if effect.timeout_ms is not None:
            waited = f"no signal {effect.name!r} came within {duration_text(effect.timeout_ms)}"
            ctx.after(time_left(ctx, effect.timeout_ms), lambda: later.time_out(waited))
        return later
