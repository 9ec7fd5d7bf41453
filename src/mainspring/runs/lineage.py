"""In whose name a run works: what its log lines carry, and the spans of the run and of its effects.

A run that was started while a message was handled belongs to that message's conversation, also when it goes on after a
crash: cause, correlation and trace are in its record. A run that no message started and that keeps no journal has
no lineage at all, and costs nothing for it.

The run's span lasts as long as this process executes it. An effect has a span from the moment its handler is asked
until the answer is there; an answer from the journal has none, because nothing was done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.runs.run import Failed, Outcome
from mainspring.telemetry import Entered, OpenSpan, WorkContext, current_correlation, handling, tracing

if TYPE_CHECKING:
    from mainspring.runs.durable.records import RunRecord
    from mainspring.runs.handlers import RegisteredHandler


class Lineage(WorkContext):
    """Of one run. Entered while its program or one of its handlers is called."""

    __slots__ = ("_effect", "correlation", "run_id")

    def __init__(self, run_id: str, program: str, *, durable: bool, correlation: str | None, trace: str | None) -> None:
        super().__init__((run_id, correlation), None)
        self.run_id: str = run_id
        self.correlation: str | None = correlation
        self._effect: OpenSpan | None = None
        if tracing.recorder is not None:
            attributes = {
                "mainspring.run.id": run_id,
                "mainspring.run.program": program,
                "mainspring.run.durable": durable,
            }
            self.span = tracing.recorder.begin(f"run {program}", "INTERNAL", attributes, parent=trace)

    def ask(self, handler: RegisteredHandler, key: str) -> Entered:
        """The handler of an effect is called; `key` names the effect in logs and in the causation tree."""
        handler.asked += 1
        token = handling.set((key, self.correlation))
        if self.span is None or tracing.recorder is None:
            return token, None
        attributes = {"mainspring.run.id": self.run_id, "mainspring.effect.key": key}
        self._effect = tracing.recorder.begin(f"effect {handler.name}", "INTERNAL", attributes, parent=self.span)
        return token, self._effect.enter()

    def answered(self, error: BaseException | None) -> None:
        """The effect has its answer, or is given up."""
        effect, self._effect = self._effect, None
        if effect is not None:
            effect.end(error)

    def ended(self, outcome: Outcome[Any] | None) -> None:
        """The run is over; without an outcome: for this process."""
        self.answered(None)
        if self.span is not None:
            self.span.note("mainspring.run.outcome", "let go" if outcome is None else outcome.kind)
            self.span.end(outcome.error if isinstance(outcome, Failed) else None)


def of_here(run_id: str, program: str) -> Lineage | None:
    """The lineage of a run without a journal that is started here; None when no message is being handled."""
    if handling.get() is None and tracing.recorder is None:
        return None
    return Lineage(run_id, program, durable=False, correlation=current_correlation(), trace=None)


def of_record(record: RunRecord) -> Lineage:
    """The lineage of a durable run, which its record remembers."""
    return Lineage(record.id, record.program, durable=True, correlation=record.correlation, trace=record.traceparent)
