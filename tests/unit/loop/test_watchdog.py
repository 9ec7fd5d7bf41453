"""The watchdog names what blocks the loop's thread. Time is moved by hand; the thread and its frames are real."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvloop

from mainspring.loop import Loop, VirtualClock, Watchdog, identifies_work

PATIENCE_S = 60.0  # how long to wait for what must come; never a measurement
LIMIT_MS = 100
LOOK_MS = LIMIT_MS / 2


class Site:
    """An event loop on a thread of its own, watched, with a clock that the test moves."""

    def __init__(self, new_event_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self.clock = VirtualClock()
        self.cpu_ns = 0
        self.aio = new_event_loop()
        self.thread = threading.Thread(target=self.aio.run_forever, daemon=True)
        self.thread.start()
        self.loop = Loop(self.clock)
        self.watchdog = Watchdog(LIMIT_MS, self.clock, loop=self.loop, cpu_ns=lambda: self.cpu_ns)
        self.entered = threading.Event()
        self.released = threading.Event()
        self.call(self.watchdog.attach)
        self.settle()

    def call(self, function: Callable[[], Any]) -> Any:
        """Call it on the loop's thread; what it returns."""

        async def here() -> Any:
            result = function()
            return await result if asyncio.iscoroutine(result) else result

        return asyncio.run_coroutine_threadsafe(here(), self.aio).result(PATIENCE_S)

    def settle(self) -> None:
        """Let the event loop come round, and go back to its selector."""
        for _ in range(3):
            self.call(lambda: None)

    def begin(self, function: Callable[[], Any]) -> None:
        """Have it called on the loop's thread and wait until it blocks."""
        self.entered.clear()
        self.released.clear()
        asyncio.run_coroutine_threadsafe(_awaited(function), self.aio)
        assert self.entered.wait(PATIENCE_S)

    def block(self) -> None:
        self.entered.set()
        assert self.released.wait(PATIENCE_S)

    def release(self) -> None:
        self.released.set()
        self.settle()

    def pass_time(self, ms: float, *, running: bool = True) -> None:
        """Move the clock as far as the watchdog would wait, and look, until `ms` have passed."""
        while ms > 0:
            step = min(ms, LOOK_MS)
            self.clock.advance(step)
            self.cpu_ns += round(step * 1e6) if running else 0
            self.watchdog.look()
            ms -= step

    def close(self) -> None:
        self.released.set()
        self.aio.call_soon_threadsafe(self.aio.stop)
        self.thread.join(PATIENCE_S)
        self.aio.close()


async def _awaited(function: Callable[[], Any]) -> None:
    result = function()
    if asyncio.iscoroutine(result):
        await result


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    made = Site(request.param)
    yield made
    made.close()


@identifies_work(lambda known: ("command", known["name"]))
def handle(name: str, work: Callable[[], Any]) -> Any:
    return work()


def test_work_that_blocks_is_named_while_it_blocks_and_once_more_when_it_ends(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.begin(lambda: handle("Order.Place", site.block))
    site.pass_time(LOOK_MS)
    site.pass_time(LOOK_MS)
    assert caplog.records == []
    site.pass_time(LOOK_MS)
    (warning,) = caplog.records
    assert warning.getMessage().startswith("command Order.Place has blocked the loop for 100 ms")
    assert f"{__file__}:" in warning.getMessage()
    assert warning.stack_info is not None
    assert "self.released.wait(PATIENCE_S)" in warning.stack_info
    assert "in handle" in warning.stack_info.splitlines()[0]
    assert not site.watchdog.blocked
    site.pass_time(1_000)
    assert len(caplog.records) == 1
    site.release()
    site.pass_time(LOOK_MS)
    assert caplog.messages[1:] == ["command Order.Place blocked the loop for 1,100 ms"]
    (blocked,) = site.watchdog.blocked
    assert (blocked.kind, blocked.name, blocked.duration_ms, blocked.limit_ms) == ("command", "Order.Place", 1_100, 100)
    assert blocked.stack == warning.stack_info
    total = site.watchdog.totals["command"]
    assert (total.times, total.duration_ms, site.watchdog.times_blocked) == (1, 1_100, 1)


def test_a_coroutine_that_blocks_is_named_like_a_function(site: Site) -> None:
    @identifies_work(lambda known: ("consumer", "bill of topic orders"))
    async def consume() -> None:
        await asyncio.sleep(0)
        await bill()

    async def bill() -> None:
        site.block()

    site.begin(consume)
    site.pass_time(3 * LOOK_MS)
    site.release()
    site.pass_time(LOOK_MS)
    (blocked,) = site.watchdog.blocked
    assert (blocked.kind, blocked.name) == ("consumer", "bill of topic orders")
    assert "in bill" in blocked.stack


def test_code_that_nothing_identifies_is_named_by_its_function(site: Site) -> None:
    site.begin(site.block)
    site.pass_time(3 * LOOK_MS)
    site.release()
    site.pass_time(LOOK_MS)
    (blocked,) = site.watchdog.blocked
    assert (blocked.kind, blocked.name) == ("other", f"{__name__}.Site.block")
    assert blocked.where.startswith(f"{__file__}:")
    assert blocked.where.endswith("in block")


def test_a_loop_that_comes_round_is_not_blocked_however_busy_one_piece_of_work_is(site: Site) -> None:
    """The coroutine's frame is on the stack at every look; in between it gives the loop back."""
    steps = 10

    @identifies_work(lambda known: ("command", "Report.Build"))
    async def build() -> None:
        for _ in range(steps):
            site.block()
            site.released.clear()
            await asyncio.sleep(0)

    site.begin(build)
    for number in range(steps):
        site.pass_time(LOOK_MS)
        site.entered.clear()
        site.released.set()
        if number < steps - 1:
            assert site.entered.wait(PATIENCE_S)
    assert not site.watchdog.blocked
    assert site.watchdog.times_blocked == 0


def test_many_short_pieces_of_work_in_a_row_are_not_one_that_blocks(site: Site) -> None:
    pieces = [object() for _ in range(6)]

    @identifies_work(lambda known: ("command", "Many.Small"), unit="piece")
    def serve() -> None:
        for piece in pieces:
            assert piece is not None
            site.block()
            site.released.clear()

    site.begin(serve)
    for number in range(len(pieces)):
        site.pass_time(LOOK_MS)
        site.entered.clear()
        site.released.set()
        if number < len(pieces) - 1:
            assert site.entered.wait(PATIENCE_S)
    site.settle()
    site.pass_time(LOOK_MS)
    assert not site.watchdog.blocked


def test_what_blocks_after_another_in_the_same_round_is_reported_by_itself(site: Site) -> None:
    def both() -> None:
        handle("First", site.block)
        site.released.clear()
        handle("Second", site.block)

    site.begin(both)
    site.pass_time(4 * LOOK_MS)
    site.entered.clear()
    site.released.set()
    assert site.entered.wait(PATIENCE_S)
    site.pass_time(6 * LOOK_MS)
    site.release()
    site.pass_time(LOOK_MS)
    assert [(each.name, each.duration_ms) for each in site.watchdog.blocked] == [("First", 200), ("Second", 250)]


def test_a_turn_of_the_loop_is_named_by_its_function(site: Site) -> None:
    def turn(_: None) -> None:
        site.block()

    site.loop.post(turn, None)
    site.begin(site.loop.run_until_idle)
    site.pass_time(3 * LOOK_MS)
    site.release()
    site.pass_time(LOOK_MS)
    (blocked,) = site.watchdog.blocked
    assert blocked.kind == "turn"
    assert blocked.name.endswith("turn(NoneType)")


def test_a_process_that_was_stopped_is_not_a_handlers_fault(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.begin(lambda: handle("Order.Place", site.block))
    site.pass_time(LOOK_MS)
    site.clock.advance(10_000 + LOOK_MS)
    site.watchdog.look()
    assert caplog.messages == [
        "this process did not run for 10,000 ms: it was stopped or suspended, or got no processor time; no handler is "
        "to blame"
    ]
    assert set(site.watchdog.totals) == {"process"}
    assert site.watchdog.times_blocked == 0
    site.pass_time(LOOK_MS)
    site.release()
    site.pass_time(LOOK_MS)
    assert [(each.kind, each.duration_ms) for each in site.watchdog.blocked] == [("process", 10_000), ("command", 100)]


def test_code_that_keeps_the_interpreters_lock_is_a_handlers_fault(site: Site) -> None:
    """The watchdog could not run either, and comes late; but the process has used its processor time."""
    site.pass_time(LOOK_MS)
    site.begin(lambda: handle("Order.Place", site.block))
    site.clock.advance(3_000 + LOOK_MS)
    site.cpu_ns += 2_900_000_000
    site.watchdog.look()
    site.release()
    site.pass_time(LOOK_MS)
    (blocked,) = site.watchdog.blocked
    assert (blocked.kind, blocked.name) == ("command", "Order.Place")
    assert blocked.duration_ms >= 3_000


def test_the_same_work_is_logged_once_a_minute_and_counted_every_time(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    def block_once() -> None:
        site.begin(lambda: handle("Order.Place", site.block))
        site.pass_time(3 * LOOK_MS)
        site.release()
        site.pass_time(LOOK_MS)

    for _ in range(4):
        block_once()
    assert len(caplog.records) == 2
    assert site.watchdog.totals["command"].times == 4
    site.pass_time(60_000)
    block_once()
    assert "(3 more times since it was last reported)" in caplog.messages[2]
    assert len(caplog.records) == 4


def test_an_idle_loop_is_looked_at_once_a_second_until_something_happens(site: Site) -> None:
    delays = set()
    for _ in range(40):
        site.clock.advance(LOOK_MS)
        delays.add(site.watchdog.look())
    assert delays == {LOOK_MS / 1000, 1.0}
    assert site.watchdog.look() == 1.0
    site.call(lambda: site.loop.post(lambda _: None, None))
    site.call(site.loop.run_until_idle)
    assert site.watchdog.look() == LOOK_MS / 1000


def test_an_idle_loop_is_not_woken_by_looking(site: Site) -> None:
    asked = site.watchdog.times_asked
    for _ in range(40):
        site.pass_time(LOOK_MS)
    assert site.watchdog.times_asked == asked


def test_while_a_node_boots_only_code_of_the_program_is_reported(site: Site) -> None:
    for booting in (True, False):
        site.watchdog.booting = booting
        barrier = threading.Barrier(2)
        site.aio.call_soon_threadsafe(barrier.wait, PATIENCE_S)  # the standard library's: no program is on the stack
        while barrier.n_waiting < 1:
            time.sleep(0.001)
        site.pass_time(3 * LOOK_MS)
        barrier.wait(PATIENCE_S)
        site.settle()
        site.pass_time(LOOK_MS)
        assert len(site.watchdog.blocked) == (0 if booting else 1)


def test_between_two_runs_of_an_event_loop_nothing_is_blocked() -> None:
    clock = VirtualClock()
    watchdog = Watchdog(LIMIT_MS, clock, cpu_ns=clock.now_ns)
    with asyncio.Runner() as runner:

        async def main() -> None:
            watchdog.attach()
            await asyncio.sleep(0)

        runner.run(main())
        for _ in range(10):
            clock.advance(LOOK_MS)
            watchdog.look()
        runner.run(main())
    clock.advance(LOOK_MS)
    watchdog.look()
    assert not watchdog.blocked


@pytest.mark.parametrize("new_event_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_it_watches_by_itself_from_a_thread_of_its_own(new_event_loop: Callable[[], Any]) -> None:
    seen = threading.Event()
    ended: queue.SimpleQueue[str] = queue.SimpleQueue()

    class Seen(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = record.getMessage()
            if "Order.Place" in text:
                seen.set() if record.stack_info else ended.put_nowait(text)

    logger, listener = logging.getLogger("mainspring.loop"), Seen()
    logger.addHandler(listener)

    async def main() -> None:
        with Watchdog(1) as watchdog:
            for name in ("Order.Place 1", "Order.Place 2", "Order.Place 3"):
                seen.clear()
                handle(name, lambda: seen.wait(PATIENCE_S))
                assert seen.is_set()
                text = await asyncio.to_thread(ended.get, timeout=PATIENCE_S)
                assert text.startswith(f"command {name} blocked the loop for")
            assert all(each.duration_ms >= 1 for each in watchdog.blocked)

    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(main())
    finally:
        logger.removeHandler(listener)
