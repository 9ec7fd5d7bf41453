"""Keeping the stream short: when a snapshot is due, and when messages may go.

Every node looks, after what it applied; nothing here needs a clock, because the messages carry the server's time. What
goes wrong here harms nobody: it is tried again later, by this node or another.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from mainspring.log.engines.nats import encoding, snapshots
from mainspring.log.engines.nats.address import Address
from mainspring.log.engines.nats.connection import Connection
from mainspring.log.engines.nats.link import ended
from mainspring.log.engines.nats.replica import Replica
from mainspring.log.engines.nats.sender import Sender
from mainspring.log.engines.nats.snapshots import Housekeeping

AGAIN_SECONDS: Final = 30.0

_logger = logging.getLogger(__name__)


class Keeper:
    """`look` after applying; the work is done beside the node's own."""

    def __init__(
        self,
        connection: Connection,
        address: Address,
        replica: Replica,
        replicas: int,
        sender: Sender,
        rules: Housekeeping,
    ) -> None:
        self._connection = connection
        self._address = address
        self._replica = replica
        self._replicas = replicas
        self._sender = sender
        self._rules = rules
        self._task: asyncio.Task[None] | None = None
        self._not_before = 0.0
        self._dropped = 0  # the snapshot before which all messages are gone

    def look(self) -> None:
        if self._task is None and (self._may_drop() or self._should_make()):
            loop = asyncio.get_running_loop()
            if loop.time() >= self._not_before:
                self._task = loop.create_task(self._work())

    async def close(self) -> None:
        if self._task is not None:
            await ended(self._task)

    def _may_drop(self) -> bool:
        state = self._replica.state
        made = state.snapshot
        return made is not None and made.seq > self._dropped and state.ts - made.ts >= self._rules.keep_ms

    def _should_make(self) -> bool:
        state = self._replica.state
        made = state.snapshot
        if state.claimed and state.ts - state.claimed < self._rules.claim_ms:
            return False
        if made is None:
            return state.grown > self._rules.grown_bytes
        return state.grown > max(self._rules.grown_bytes, made.bytes) and state.ts - made.ts >= self._rules.keep_ms

    async def _work(self) -> None:
        try:
            if self._may_drop():
                await self._drop()
            if self._should_make():
                await self._make()
        except Exception as error:  # servers away, a full disk: the next look tries again
            _logger.warning("keeping the log short did not work: %s: %s", type(error).__name__, error)
            self._not_before = asyncio.get_running_loop().time() + AGAIN_SECONDS
        finally:
            self._task = None

    async def _drop(self) -> None:
        made = self._replica.state.snapshot
        assert made is not None
        link = await self._connection.linked()
        if await snapshots.drop_before(link, self._address, made):
            self._dropped = made.seq
        else:
            raise LookupError("the snapshot is not in the object store")

    async def _make(self) -> None:
        claim = await self._sender.send(encoding.CLAIM, encoding.encode_time(self._rules.claim_ms))
        if (await self._sender.outcome(claim)).value is not True:
            return
        target = self._replica.path.with_name(self._replica.path.name + ".snapshot")
        try:
            loop = asyncio.get_running_loop()
            made = await loop.run_in_executor(None, snapshots.copy, self._replica.path, target)
            newest = self._replica.state.snapshot
            if newest is None or made.seq > newest.seq:
                link = await self._connection.linked()
                await snapshots.store(link, self._address, self._replicas, target, made)
                noted = await self._sender.send(encoding.SNAPSHOT, encoding.encode_made(made))
                await self._sender.outcome(noted)
        finally:
            target.unlink(missing_ok=True)
