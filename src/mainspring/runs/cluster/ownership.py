"""Who executes the durable runs of a log: one node alone, or several that share it.

`Ownership` is all that differs between the two. The rest of the package asks it and never which of the two it is.

On a log of its own (`Ownership`) there is no other node to agree with: the engine lets one process open the log, so
every unfinished run on it is this node's, whatever node its record names, and no write can be refused for it.

On a log that several nodes share (`SharedOwnership`) the node's membership in the cluster entitles it. Its epoch is in
the record of every run it executes and its guard is in every batch it writes; no clock of any machine is compared with
another's. A write can then be refused for one of four reasons. An earlier try of the same batch was stored and only its
answer got lost: then what it wrote is there, byte for byte, and all is well. The node's lease was taken: then others
execute the run. Another node ended the run or has it: the same. Or a handler's own writes expected something that is
not so: then the run fails, as on a log of its own. The log is asked which; nothing is guessed.

The reasons are in docs/decisions/runs-cluster.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mainspring.cluster import Cluster, Role
from mainspring.log import (
    ANY_VERSION,
    Batch,
    Change,
    Delete,
    KeptRecord,
    LogUnavailable,
    Operation,
    Put,
    Record,
    Refused,
)
from mainspring.loop import wake
from mainspring.runs.cluster.placement import CODES, PROGRAMS, Placement
from mainspring.runs.cluster.takeover import Takeover
from mainspring.runs.durable.records import (
    EARLY,
    JOURNAL,
    LIVE,
    RECEIVED,
    RUNS,
    SIGNALS,
    UNFINISHED,
    RunRecord,
    decode_record,
    encode_record,
)
from mainspring.runs.durable.state import DurableState, FencedState
from mainspring.runs.durable.store import CHILD_MARK, LoadedRun, RunStore, SharedRunStore
from mainspring.runs.errors import TakenOver
from mainspring.runs.run import FAILURE, RESUME, Failed, Run, Value

if TYPE_CHECKING:
    from mainspring.runs.durable.durable_runs import DurableRuns

CHUNK: Final = 500  # runs whose journals are read together: bounds the memory, not the number of runs
PAUSE_MS: Final = 200  # before a log that could not be read is asked again
ROLE: Final = "runs"
LEASES: Final = "leases"
OLD_LEASES: Final = "runs/"  # the keys of leases that former versions kept on a log of their own

T = TypeVar("T")

logger: logging.Logger = logging.getLogger("mainspring.runs")


class Ownership:
    """The right of one node to execute durable runs, and what it means for what is read and written.

    As it stands here, on a log that no other process has open: everything on it is this node's.
    """

    keeps_notes_apart: bool = False
    """Whether a handler's note has a row of its own instead of standing where the answer comes."""
    new_state: type[DurableState] = DurableState

    def __init__(self, durable: DurableRuns, node: str, store: RunStore) -> None:
        self.node = node
        self.epoch: int = 0  # in the records of this node's runs, where several share the log; 0: not entitled
        self.store = store
        self.times_lost: int = 0  # how often the right to execute was taken away
        self.pausing: int = 0  # how many wait until the log can be read again
        self._durable = durable
        durable.writer.use([])

    # -- the right to execute

    async def start(self) -> None:
        """Get entitled; writes flow from then on."""
        leases = [record.key async for record in self._durable.log.scan(LEASES, OLD_LEASES)]
        if leases:
            await self._durable.log.commit(Batch([Delete(LEASES, key) for key in leases]))
        self._durable.writer.use([])

    def stop(self) -> None:
        """Want no entitlement any more, until `start`."""
        self._durable.writer.hold()

    def entitled(self) -> bool:
        """Whether this node may begin runs now; it becomes entitled if that is possible."""
        return True

    async def still_entitled(self) -> bool:
        """Whether this node's guard holds. When it does not, its runs are let go."""
        return True

    def is_certain(self) -> bool:
        """Whether no other node can have taken this node's runs."""
        return True

    def when_certain(self, call: Callable[[], object]) -> None:
        """Call when that is so, or when the runs that were taken are let go."""
        call()

    async def recover(self, look_again: bool) -> bool:
        """Go on with unfinished runs that are this node's to execute; False when that must wait for the entitlement.

        `look_again`: something changed, and there may be runs that this node should execute and does not.
        """
        if look_again:
            chunk: list[RunRecord] = []
            async for live in self._durable.log.scan(LIVE):
                if self._durable.executes(live.key):
                    continue
                record = decode_record(live.value)
                if await self._is_recoverable(record):
                    chunk.append(record)
                if len(chunk) >= CHUNK:
                    await self._durable.recover(chunk)
                    chunk = []
            await self._durable.recover(chunk)
        return True

    async def _is_recoverable(self, record: RunRecord) -> bool:
        """Whether its program is here, and no unfinished parent that brings it back."""
        if record.program not in self._durable.programs:
            logger.warning("run %s waits for program %s, which is not registered", record.id, record.program)
            return False
        return record.parent is None or await self._durable.log.get(LIVE, record.parent) is None

    async def housekeeping(self) -> Callable[[Batch], None] | None:
        """The guard for removing old runs; None when that is another node's work."""
        return lambda batch: None

    # -- whose run it is

    def owns(self, record: RunRecord) -> bool:
        """Whether this node is the one to execute an unfinished run."""
        return True

    def owner_of(self, record: RunRecord) -> str | None:
        """The node that executes an unfinished run, where there can be several."""
        return None

    def executes(self, program: str) -> bool:
        """Whether a run of this program that is started here is executed here; False when only others have it."""
        return True

    def require_program(self, name: str) -> None:
        """UnknownProgram unless some node can execute it."""
        self._durable.programs.get(name)

    def waits_for(self, record: RunRecord) -> str:
        """What an unfinished run needs so that it can be executed, like its program; empty when nothing is missing."""
        is_missing = record.state in UNFINISHED and record.program not in self._durable.programs
        return f"program {record.program}" if is_missing else ""

    def fits_elsewhere(self, record: RunRecord) -> bool:
        """Whether a living node has the code that a run had before this node took it."""
        return False

    def known_programs(self) -> list[str]:
        """The programs that can be executed."""
        return self._durable.programs.names()

    async def claim(self, record: RunRecord, version: int) -> bool:
        """Make this node the owner of an unfinished run and of its children; False when another was faster."""
        return True

    def prepare(self, record: RunRecord) -> None:
        """Complete the record of a new run: this node becomes its owner if it executes the program."""
        self.sign(record)

    def sign(self, record: RunRecord) -> None:
        """Make this node the owner in the record."""
        record.owner, record.epoch = self.node, self.epoch

    async def take(self, record: RunRecord, version: int) -> bool:
        """Become the owner of an unfinished run if it is free; whether this node may execute it."""
        return True

    async def load(self, records: Iterable[RunRecord]) -> list[LoadedRun]:
        """Read what belongs to runs, as far as they are this node's right now."""
        return await self.store.load(records)

    # -- what is written

    @property
    def sender(self) -> str:
        """This node as the sender of signals; never the same for two lives of a node that could meet."""
        return self.node

    def expected(self, version: int) -> int:
        """The version that a write expects to find, given the one that was read or written last."""
        return ANY_VERSION

    def received(self, run: Run[Any], signal: str) -> Operation:
        """What becomes of the record of a signal when a run has received it."""
        self._durable.signals.forget(run.id, signal)
        return Delete(SIGNALS, signal)

    def signal_stored(self, key: str, text: bytes) -> None:
        """A signal that was sent here is stored."""
        self._durable.signals.arrived(key, text)

    # -- what became of a write

    def answer_refused(self, run: Run[Any], value: Any, put: Put, error: Refused) -> None:
        """An answer that was to be stored with a handler's own writes was refused."""
        run.scheduler.enqueue(run, FAILURE, error)

    def ending_refused(self, run: Run[Any], had_own_writes: bool, error: Refused) -> None:
        """An outcome, perhaps with the writes of the handler that ended the run, was refused."""
        assert run.durable is not None
        run.durable.cannot_be_stored(error)

    async def was_stored(self, operations: list[Operation]) -> bool:
        """Whether a refused batch had been stored before, by a try whose answer was lost."""
        return False

    async def read(self, read: Callable[[], Awaitable[T]]) -> T:
        """Read something that must be known; where a log can be out of reach, read until it can be read."""
        return await read()

    async def pause(self) -> None:
        """Leave the log alone for a moment."""
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._durable.scheduler.timer(PAUSE_MS, lambda: wake(over))
        self.pausing += 1
        try:
            await over
        finally:
            self.pausing -= 1


class SharedOwnership(Ownership):
    """Entitled by the node's place in the cluster."""

    keeps_notes_apart = True  # so that an answer can always expect an empty place
    new_state = FencedState

    def __init__(self, durable: DurableRuns, cluster: Cluster) -> None:
        super().__init__(durable, cluster.node, SharedRunStore(durable.log))
        self._cluster = cluster
        self._placement = Placement(durable.log, cluster, durable.programs)
        self._takeover = Takeover(durable, self, self._placement, cluster)
        self._refused = 0  # the epoch that turned out to be over
        self._running = False
        self._stopped = False
        self._listening = False
        self._role: Role | None = None
        durable.writer.hold()
        durable.writer.on_need = self.entitled
        durable.writer.on_fenced = lambda: self._lost(self.epoch)

    # -- the right to execute

    async def start(self) -> None:
        self._running, self._stopped = True, False
        self._durable.writer.hold()
        if not self._listening:
            self._listening = True
            self._durable.log.watch_records(self._on_change)
            self._cluster.on_death(lambda _: self._durable.recovery.look_again())
            self._cluster.on_fenced(self._on_fenced)
        self._role = self._cluster.role(ROLE)
        self._get_entitled()
        await self._placement.load()

    def stop(self) -> None:
        self._running, self._stopped, self.epoch = False, True, 0
        self._durable.writer.hold()

    def entitled(self) -> bool:
        if not self.epoch:
            self._get_entitled()
        return self.epoch != 0

    def is_certain(self) -> bool:
        return self._cluster.in_touch

    def when_certain(self, call: Callable[[], object]) -> None:
        self._cluster.when_in_touch(call)

    def _get_entitled(self) -> None:
        """The guard is made once per epoch: a batch of this epoch can never carry the guard of a later one."""
        epoch = self._cluster.epoch
        if self._stopped or epoch == self._refused or not self._cluster.alive(epoch):
            return  # `_on_fenced` comes when the cluster has a new one
        self.epoch = epoch
        guard = Batch()
        self._cluster.guard(guard)
        self._durable.writer.use(guard.operations)
        self._durable.starting.write_unwritten()

    def _lost(self, epoch: int) -> None:
        """Others execute this node's runs from now on. Which epoch comes next is for the cluster to say."""
        if self.epoch == 0 or epoch != self.epoch:
            return
        self.times_lost += 1
        logger.warning("node %s lost its lease (epoch %d); its durable runs go on elsewhere", self.node, self.epoch)
        self._refused, self.epoch = self.epoch, 0
        self._durable.writer.hold()
        self._durable.let_go(look=True)

    def _on_fenced(self, _: int) -> None:
        """The cluster has a new epoch: what was held under the one before belongs to others."""
        if self._running:
            if self.epoch != self._cluster.epoch:
                self._lost(self.epoch)
            self._get_entitled()
            self._durable.recovery.look_again()

    def _on_change(self, change: Change) -> None:
        for record in change.records:
            if record.space == RUNS:
                self._durable.on_finished(record)
            elif record.space == SIGNALS:
                self._on_signal(record)
            elif record.space == EARLY:
                self._durable.signals.on_early(record)
            elif record.space in (PROGRAMS, CODES):
                self._placement.on_change(record)
            elif record.space == LIVE and record.value:
                self._takeover.on_live(decode_record(record.value))

    def _on_signal(self, record: KeptRecord) -> None:
        if record.value == RECEIVED:
            self._durable.signals.forget(record.key.partition("#")[0], record.key)
        else:
            self._durable.signals.arrived(record.key, record.value)

    async def recover(self, look_again: bool) -> bool:
        if not self.entitled():
            return False
        await self._placement.announce(self.epoch, self._cluster.guard)
        await self._durable.blocked.give_away()
        await self._takeover.recover(look_again)
        return True

    async def housekeeping(self) -> Callable[[Batch], None] | None:
        if self._role is None or not self._role.held:
            return None
        await self._placement.remove_dead(self._role.guard)
        return self._role.guard

    # -- whose run it is

    def owns(self, record: RunRecord) -> bool:
        return self.epoch != 0 and record.epoch == self.epoch

    def owner_of(self, record: RunRecord) -> str | None:
        return record.owner if record.epoch else None

    def executes(self, program: str) -> bool:
        return program in self._durable.programs or not self._placement.has_executor(program)

    def require_program(self, name: str) -> None:
        if not self._placement.has_executor(name):
            self._durable.programs.get(name)

    def waits_for(self, record: RunRecord) -> str:
        if record.state not in UNFINISHED or self._cluster.alive(record.epoch):
            return ""
        return self._placement.missing(record)

    def fits_elsewhere(self, record: RunRecord) -> bool:
        return bool(record.former_code) and self._placement.has_code(record.program, record.former_code)

    def known_programs(self) -> list[str]:
        return self._placement.programs()

    def prepare(self, record: RunRecord) -> None:
        record.has_children = True  # noted now and not with the first child: the record is not written again
        if self.executes(record.program):
            self.sign(record)

    def sign(self, record: RunRecord) -> None:
        record.owner, record.epoch = self.node, self.epoch
        code = self._durable.programs.code(record.program)
        if record.code != code:
            record.code, record.former_code = code, record.code

    async def take(self, record: RunRecord, version: int) -> bool:
        if self.owns(record):
            return True
        if self._cluster.alive(record.epoch) or not self._placement.may_take(record):
            return False
        try:
            return await self.claim(record, version)
        except TakenOver:
            return False

    async def claim(self, record: RunRecord, version: int) -> bool:
        operations = [self._signed(record, version)]
        async for stored in self._durable.log.scan(LIVE, record.id + CHILD_MARK):
            child = decode_record(stored.value)
            if not self._cluster.alive(child.epoch):
                operations.append(self._signed(child, stored.version))
        return await self._durable.commit(operations)

    def _signed(self, record: RunRecord, version: int) -> Operation:
        self.sign(record)
        return Put(LIVE, record.id, encode_record(record), version)

    async def load(self, records: Iterable[RunRecord]) -> list[LoadedRun]:
        ours: list[RunRecord] = []
        versions: dict[str, int] = {}
        for record in records:
            stored = await self._durable.log.get(LIVE, record.id)
            found = None if stored is None else decode_record(stored.value)
            if stored is not None and found is not None and self.owns(found):
                ours.append(found)
                versions[record.id] = stored.version
        return await self.store.load(ours, versions)

    # -- what is written

    @property
    def sender(self) -> str:
        return f"{self.node}.{self.epoch}"

    def expected(self, version: int) -> int:
        return version

    def received(self, run: Run[Any], signal: str) -> Operation:
        """A row stays: without it, a second try to send could not tell "received" from "never stored"."""
        return Put(SIGNALS, signal, RECEIVED)

    def signal_stored(self, key: str, text: bytes) -> None:
        """The change feed brings it; by now it may even be received."""

    # -- what became of a write

    def answer_refused(self, run: Run[Any], value: Any, put: Put, error: Refused) -> None:
        self._durable.in_background(self._look_for_answer(run, value, put, error), f"refused answer of {run.id}")

    async def _look_for_answer(self, run: Run[Any], value: Any, put: Put, error: Refused) -> None:
        stored = await self._get(JOURNAL, put.key)
        was_stored = stored is not None and stored.value == put.value
        if not was_stored and not await self.still_entitled():
            return
        if not run.done:
            run.scheduler.enqueue(run, RESUME if was_stored else FAILURE, value if was_stored else error)

    def ending_refused(self, run: Run[Any], had_own_writes: bool, error: Refused) -> None:
        self._durable.in_background(self._look_for_end(run, had_own_writes, error), f"refused end of {run.id}")

    async def _look_for_end(self, run: Run[Any], had_own_writes: bool, error: Refused) -> None:
        state = run.durable
        assert state is not None
        ended = await self._get(RUNS, run.id)
        if ended is not None:
            if ended.value == encode_record(state.record):
                run.scheduler.announce(run)
            else:
                self._durable.lose(run, self._durable.outcome_of(decode_record(ended.value)))
            return
        live = await self._get(LIVE, run.id)
        if live is None or not self.owns(decode_record(live.value)):
            self._durable.lose(run)
        elif await self.still_entitled():
            state.version = live.version
            if had_own_writes and isinstance(run.decided, Value):
                run.decided = Failed(error)
            assert run.decided is not None
            state.settle(run.decided)

    async def was_stored(self, operations: list[Operation]) -> bool:
        for put in operations:
            if isinstance(put, Put) and put.space == LIVE:
                found = await self._durable.log.get(LIVE, put.key)
                return found is not None and found.value == put.value
        return False

    async def still_entitled(self) -> bool:
        epoch = self.epoch
        try:
            if await self._durable.commit([]):
                return True
        except TakenOver:
            return False
        self._lost(epoch)
        return False

    async def _get(self, space: str, key: str) -> Record | None:
        return await self.read(lambda: self._durable.log.get(space, key))

    async def read(self, read: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await read()
            except LogUnavailable:
                await self.pause()
