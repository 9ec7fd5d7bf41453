"""Moves what programs stored in their own transactions (`mainspring.postgres`) into the log.

One node at a time does it, the one that has the role, in the order of storing. An event is appended in the batch that
deletes its row: it is moved once, whatever breaks. A run is started by its id, and an event that is due later is stored
by its id, before their rows are deleted: a second try is the same run, or the same event.

What can never be moved (a topic's schema refuses it, the arguments are not the program's) is set aside with the reason,
so that it holds up nothing; `mainspring outgoing` lists it, has it tried again or drops it. A run whose program nobody
has waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from mainspring.bus import Bus, Unavailable
from mainspring.cluster import Cluster
from mainspring.errors import MainspringError
from mainspring.kernel import Fail, Kernel
from mainspring.log import ABSENT, OUTGOING, Batch, Change, Log, LogUnavailable, Prepared, Record, Refused, add_prepared
from mainspring.postgres import OutgoingEvent, OutgoingRun
from mainspring.status import REFUSED, Refusal, refusal_of

logger: logging.Logger = logging.getLogger("mainspring.outgoing")

_AT_ONCE: Final = 500
_BYTES_AT_ONCE: Final = 4 << 20
_AGAIN_S: Final = 0.5
_LATER: Final = (404, 429, 503, 504)  # nobody has the program now (a deployment may be under way), or no time for it

_decode: Final = msgspec.json.Decoder(OutgoingEvent | OutgoingRun).decode


class OutgoingMover:
    """`run` until cancelled; `wake` says that something may be there."""

    def __init__(self, log: Log, bus: Bus, kernel: Kernel, cluster: Cluster) -> None:
        self._log = log
        self._bus = bus
        self._kernel = kernel
        self._role = cluster.role("outgoing")
        self._wake = asyncio.Event()
        self._wake.set()
        self._refused_changed = True
        log.watch_records(self._on_change)
        self._role.on_change(lambda _held: self.wake())

    def _on_change(self, change: Change) -> None:
        """Somebody wants what was refused tried again, on this node or another."""
        if any(record.space == REFUSED and record.version != ABSENT for record in change.records):
            self._refused_changed = True
            self.wake()

    def wake(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        """Move what is there, and then what comes."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                if self._role.held:
                    await self._move_all()
                    if self._refused_changed:
                        self._refused_changed = await self._try_refused_again()
            except (LogUnavailable, Unavailable, Refused) as error:
                # The log is away, the node is about to stop, or the role went to another node.
                logger.info("what programs stored waits: %s", error.message)
                await asyncio.sleep(_AGAIN_S)
                self._wake.set()

    async def _move_all(self) -> None:
        rows: list[Record] = []
        size = 0
        async for record in self._log.scan(OUTGOING):
            rows.append(record)
            size += len(record.value)
            if len(rows) == _AT_ONCE or size > _BYTES_AT_ONCE:
                await self._move(rows)
                rows, size = [], 0
        if rows:
            await self._move(rows)

    async def _try_refused_again(self) -> bool:
        """What a person wants tried again; whether some of it waits."""
        wanted: list[Record] = []
        async for record in self._log.scan(REFUSED):
            kept = refusal_of(record)
            if kept.again and len(wanted) < _AT_ONCE:
                wanted.append(Record(record.key, kept.body.encode(), record.version))
        return bool(wanted) and await self._move(wanted, REFUSED) < len(wanted)

    async def _move(self, rows: Sequence[Record], space: str = OUTGOING) -> int:
        """One batch for all of them: their order stays, whatever breaks. How many do not wait."""
        batch = Batch()
        self._role.guard(batch)
        events: list[Prepared] = []
        moved = 0
        for record in rows:
            try:
                outgoing = _decode(record.value)
                if isinstance(outgoing, OutgoingEvent) and not outgoing.not_before:
                    events.append(self._prepare(outgoing))
                elif not await self._store_first(outgoing):
                    continue
            except (LogUnavailable, Unavailable):
                raise
            except (MainspringError, Fail, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                self._set_aside(batch, record, error)
                if space == OUTGOING:
                    batch.delete(OUTGOING, record.key, expect=record.version)
            else:
                batch.delete(space, record.key, expect=record.version)
            moved += 1
        if moved:
            stored = add_prepared(batch, events)
            stored(await self._log.commit(batch))
        return moved

    def _set_aside(self, batch: Batch, record: Record, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}"
        logger.error("what a program stored as %s cannot be moved into the log: %s", record.key, reason)
        body = record.value.decode(errors="backslashreplace")
        batch.put(REFUSED, record.key, msgspec.json.encode(Refusal(reason, body, self._bus.clock.wall_ms())))

    def _prepare(self, event: OutgoingEvent) -> Prepared:
        ttl = event.ttl_ms / 1000
        return self._bus.prepare(
            event.topic, bytes(event.payload), key=event.key, headers=event.headers, id=event.id, ttl=ttl
        )

    async def _store_first(self, outgoing: OutgoingEvent | OutgoingRun) -> bool:
        """What cannot be part of the batch, by its id; False when it has to wait."""
        if isinstance(outgoing, OutgoingEvent):
            await self._bus.publish(
                outgoing.topic,
                bytes(outgoing.payload),
                key=outgoing.key,
                headers=outgoing.headers,
                id=outgoing.id,
                not_before=outgoing.not_before,
                ttl=outgoing.ttl_ms / 1000,
            )
            return True
        args: list[Any] = msgspec.json.decode(outgoing.args)
        asked = {"program": outgoing.program, "args": args, "id": outgoing.id}
        try:
            await self._kernel.ask("command", "Run.Start", asked)
        except Fail as error:
            if error.code not in _LATER:
                raise
            logger.warning("a run of %s waits: %s", outgoing.program, error)
            return False
        return True
