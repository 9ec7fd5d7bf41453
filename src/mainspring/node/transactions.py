"""Runs the consumers that work in a transaction of the log's database: `@app.consumer("orders", transaction=True)`.

What the function does on `event.connection`, the acknowledgement, and the events it publishes are one commit. Each
event has a transaction of its own; while the function runs it holds no lock of the log.
"""

from __future__ import annotations

from typing import Any

from mainspring.app import Event, TransactionEvent
from mainspring.bus.groups import Position
from mainspring.bus.topics import ReadyEvent
from mainspring.errors import MainspringError, SettingError
from mainspring.log import TransactionalEngine
from mainspring.loop import identifies_work
from mainspring.node.consumers import Consuming, EventWork, kind_and_name
from mainspring.telemetry import tracing


class NotInTransaction(MainspringError, code="not_in_transaction"):
    """This cannot be part of the consumer's transaction in this way."""


class TransactionConsuming(Consuming):
    """One declared consumer with `transaction=True` at work."""

    _engine: TransactionalEngine

    def __init__(self, *declared: Any, **parts: Any) -> None:
        super().__init__(*declared, **parts)
        self._event_class = TransactionEvent
        self._new_work = _TransactionWork

    async def start(self) -> None:
        """Raises `SettingError` where the engine has no transactions for programs."""
        engine = self._log.engine
        if not isinstance(engine, TransactionalEngine):
            raise SettingError(
                f"the consumer of {self.declared.name} asks for transaction=True, and the log is not in a database",
                remedy="serve it with --engine postgresql://..., or use the Inbox",
            )
        self._engine = engine
        await super().start()

    @identifies_work(lambda known: kind_and_name(known["self"].declared))
    async def _work(self, position: Position, ready: ReadyEvent, attempt: int) -> None:
        work = self._new_work(self)
        doing = None if tracing.recorder is None else self._begin(tracing.recorder, position, ready, attempt)
        entered = None if doing is None else doing.enter()
        try:
            event = self._event(work, position, ready, attempt)
            assert isinstance(event, TransactionEvent)
            async with self._engine.transaction() as transaction:
                event.given_connection = transaction.connection
                await self._call(event)
                if event.refusal is None:
                    await self._settlement.ack_in(position, ready.offset, work.together, transaction)
            if event.refusal is not None:
                self._settlement.nack(position, ready.offset, *event.refusal)
        except Exception as error:
            if doing is not None:
                doing.end(error)
            self._failed(position, ready.offset, attempt, error)
        finally:
            if doing is not None:
                doing.leave(entered)
                doing.end()


class _TransactionWork(EventWork):
    def prepare_run(self, event: Event[Any], program: Any, args: tuple[Any, ...], id: str | None) -> str:
        raise NotInTransaction(
            "a consumer with transaction=True starts runs on its connection",
            remedy="write: await mainspring.postgres.start_run(event.connection, program, ...)",
        )
