"""How `Log` gathers batches into commits, watched through an engine that waits to be told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from mainspring.log import Append, Batch, Log, LogUnavailable, MemoryEngine, Receipt, Refused, Result, SqliteEngine
from mainspring.log.log import MOST_OPERATIONS
from mainspring.loop import run_virtual


def one(n: int) -> Batch:
    return Batch([Append("t", 0, str(n), n, b"1")])


class SlowEngine(MemoryEngine):
    """Keeps each commit until the test lets it finish."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[tuple[Sequence[Batch], Callable[[list[Result]], None]]] = []
        self.sizes: list[int] = []

    def submit(self, batches: Sequence[Batch], done: Callable[[list[Result]], None]) -> None:
        self.sizes.append(len(batches))
        self.waiting.append((batches, done))

    def finish_one(self) -> None:
        batches, done = self.waiting.pop(0)
        super().submit(batches, done)


class CoroutineEngine:
    """Only the asynchronous face, as engines with a server have it."""

    def __init__(self) -> None:
        self.inner = MemoryEngine()
        self.name = "coroutine"
        self.sizes: list[int] = []

    def __getattr__(self, name: str) -> object:
        if name == "submit":
            raise AttributeError(name)
        return getattr(self.inner, name)

    async def commit(self, batches: Sequence[Batch]) -> list[Result]:
        await asyncio.sleep(0)
        self.sizes.append(len(batches))
        if any(operation.id == "bomb" for b in batches for operation in b.operations if isinstance(operation, Append)):
            raise RuntimeError("the engine broke")
        return await self.inner.commit(batches)


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture
async def engine() -> SlowEngine:
    return SlowEngine()


async def test_what_one_slice_submits_is_one_commit(engine: SlowEngine) -> None:
    log = Log(engine)
    results: list[Result] = []
    for n in range(10):
        log.submit(one(n), results.append)
    await turns()
    assert engine.sizes == [10]
    engine.finish_one()
    await turns()
    assert [r.offsets[0][1] for r in results if isinstance(r, Receipt)] == list(range(1, 11))


async def test_a_lone_batch_leaves_in_the_slice_in_which_it_came(engine: SlowEngine) -> None:
    log = Log(engine)
    log.submit(one(1), lambda result: None)
    await asyncio.sleep(0)
    assert engine.sizes == [1]


async def test_batches_gather_while_a_commit_is_under_way_and_leave_when_it_ends(engine: SlowEngine) -> None:
    log = Log(engine)
    order: list[int] = []
    log.submit(one(0), lambda result: order.append(0))
    await turns()
    for n in range(1, 5):
        log.submit(one(n), lambda result, n=n: order.append(n))  # type: ignore[misc]
        await turns()
    assert engine.sizes == [1]
    engine.finish_one()
    await turns()
    assert engine.sizes == [1, 4]
    assert order == [0]
    engine.finish_one()
    await turns()
    assert order == [0, 1, 2, 3, 4]


async def test_all_results_of_a_commit_come_in_one_wake_up(engine: SlowEngine) -> None:
    log = Log(engine)
    moments: list[int] = []
    turn = 0
    for n in range(100):
        log.submit(one(n), lambda result: moments.append(turn))
    await turns()
    engine.finish_one()
    for turn in range(1, 5):  # noqa: B007
        await asyncio.sleep(0)
    assert len(moments) == 100
    assert len(set(moments)) == 1


async def test_a_callback_may_submit_again(engine: SlowEngine) -> None:
    log = Log(engine)
    second: list[Result] = []
    log.submit(one(1), lambda result: log.submit(one(2), second.append))
    await turns()
    engine.finish_one()
    await turns()
    engine.finish_one()
    await turns()
    assert len(second) == 1


async def test_one_commit_does_not_grow_without_bound(engine: SlowEngine) -> None:
    log = Log(engine)
    big = Batch([Append("t", 0, "x", 1, b"1")] * (MOST_OPERATIONS + 10))
    half = Batch([Append("t", 0, "x", 1, b"1")] * (MOST_OPERATIONS // 2))
    results: list[Result] = []
    for batch in (big, half, half, half):
        log.submit(batch, results.append)
    for _ in range(3):
        await turns()
        engine.finish_one()
    await turns()
    assert engine.sizes == [1, 2, 1]
    assert [r.offsets[0][1] for r in results if isinstance(r, Receipt)] == [1, 4107, 6155, 8203]


async def test_closing_waits_for_what_was_submitted(engine: SlowEngine) -> None:
    log = Log(engine)
    await log.open()
    pending = asyncio.ensure_future(log.commit(one(1)))
    await turns()
    later = asyncio.ensure_future(log.commit(one(2)))
    await turns()
    closing = asyncio.ensure_future(log.close())
    await turns()
    assert not closing.done()
    engine.finish_one()
    await turns()
    engine.finish_one()
    await closing
    assert (await pending).offsets == ((0, 1, False),)
    assert (await later).offsets == ((0, 2, False),)
    with pytest.raises(LogUnavailable):
        await log.commit(one(3))


async def test_a_caller_that_gives_up_harms_nobody(engine: SlowEngine) -> None:
    log = Log(engine)
    impatient = asyncio.ensure_future(log.commit(one(1)))
    patient = asyncio.ensure_future(log.commit(one(2)))
    await turns()
    impatient.cancel()
    await turns()
    engine.finish_one()
    assert (await patient).offsets == ((0, 2, False),)


async def test_engines_with_only_a_coroutine_work_alike() -> None:
    engine = CoroutineEngine()
    log = Log(engine)  # type: ignore[arg-type]
    receipts = await asyncio.gather(*(log.commit(one(n)) for n in range(5)))
    assert [receipt.offsets[0][1] for receipt in receipts] == [1, 2, 3, 4, 5]
    assert engine.sizes == [5]


async def test_a_broken_engine_is_told_to_every_writer_and_writing_goes_on() -> None:
    log = Log(CoroutineEngine())  # type: ignore[arg-type]
    bomb = Batch([Append("t", 0, "bomb", 1, b"1")])
    results = await asyncio.gather(log.commit(bomb), log.commit(one(1)), return_exceptions=True)
    assert [type(result) for result in results] == [LogUnavailable, LogUnavailable]
    assert isinstance(log.fault, LogUnavailable)
    assert (await log.commit(one(1))).offsets == ((0, 1, False),)
    assert log.fault is None


async def test_a_refusal_is_no_fault_of_the_log() -> None:
    log = Log(MemoryEngine())
    with pytest.raises(Refused):
        await log.commit(Batch([Append("t", 0, "x", 1, b"1", expect=9)]))
    assert log.fault is None


async def test_a_callback_that_raises_is_reported_and_the_others_hear_of_their_batches(engine: SlowEngine) -> None:
    log = Log(engine)
    heard: list[Result] = []
    reported: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context["exception"]))

    def broken(result: Result) -> None:
        raise ValueError("a defect")

    log.submit(one(1), broken)
    log.submit(one(2), heard.append)
    await turns()
    engine.finish_one()
    await turns()
    assert len(heard) == 1
    assert [str(error) for error in reported] == ["a defect"]


def test_virtual_time_stands_still_while_the_disk_works(tmp_path: Path) -> None:
    async def story() -> int:
        log = Log(SqliteEngine(tmp_path / "log"))
        await log.open()
        loop = asyncio.get_running_loop()
        late = loop.call_later(3600, lambda: None)
        started = loop.time()
        for n in range(20):
            await log.commit(one(n))
            await log.engine.commit([one(n)])
        await log.forget_dedupe(1)
        await log.read("t", 0, 1, 10)
        assert loop.time() == started
        late.cancel()
        await log.close()
        return log.commits

    assert run_virtual(story()) == 20


async def test_a_closed_log_answers_through_the_callback_and_never_raises() -> None:
    log = Log(MemoryEngine())
    await log.open()
    await log.close()
    results: list[Result] = []
    log.submit(one(1), results.append)
    assert results == []  # later, like every other result
    await turns()
    (result,) = results
    assert isinstance(result, LogUnavailable)
    assert result.remedy
    with pytest.raises(LogUnavailable, match="the log is closed"):
        await log.commit(one(2))
