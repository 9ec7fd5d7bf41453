"""How fast the loop is, against the event loops a Python program would use instead.

Prints one JSON object. Every ratio compares two things measured in the same run, alternately, and is the median of
several rounds, so that a busy machine slows both sides. Goals stand beside the ratios; no time is ever asserted.

- `timers`: schedule and cancel, against `call_later` and `cancel` of asyncio and uvloop. `at_once` cancels each timer
  right after setting it; `a_slice_later` sets a thousand, lets the event loop turn, looks at the next deadline, and
  cancels them then.
- `pending`: the same operations with a million timers pending, against a thousand; and handing out due ones. Ids are
  numbers, as the loop makes them, and texts, where the processor's cache misses show.
- `turns`: a turn that posts the next one, against a callback that calls `call_soon` for the next one. `one` chain is
  the usual case of one thing leading to another; `hundred` chains at once also show what yielding to the host saves.
- `poll`: POLL of `sys/loop` with one ready watch, among 10,000 idle ones against 10.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import struct
import time
from collections.abc import Callable, Coroutine, Hashable, Sequence
from functools import partial
from typing import Any

from bench.harness import Figures, compare, options, report
from mainspring.loop import Loop, TimerEntry, TimerWheel

ROUNDS = 7
NUMBERS = range(30_000)
Factory = Callable[[], asyncio.AbstractEventLoop]
Measure = Callable[[], float]
Name = Callable[[int], Hashable]


def hosts() -> dict[str, Factory]:
    found: dict[str, Factory] = {"asyncio": asyncio.SelectorEventLoop}
    try:
        import uvloop
    except ImportError:
        return found
    return {**found, "uvloop": uvloop.new_event_loop}


def versus(ours: Measure, theirs: Measure) -> Figures:
    return compare(ours, theirs, ("ours_ns", "theirs_ns"), ROUNDS)


def nothing(argument: object) -> None:
    """What the timers of this benchmark would call."""


def hosted(factory: Factory, main: Callable[[], Coroutine[Any, Any, float]]) -> Measure:
    def measure() -> float:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(main())

    return measure


def per_operation_ns(started: float, operations: int) -> float:
    return (time.perf_counter() - started) / operations * 1e9


# Timers


def by_number(number: int) -> Hashable:
    """Ids as the loop makes them."""
    return number


def by_text(number: int) -> Hashable:
    """Ids as a program might: a lookup among a million of these lands somewhere else in memory every time."""
    return f"timeout-{number}"


def full_wheel(pending: int, name: Name = by_number) -> TimerWheel:
    """A wheel with timers somewhere in the next hour, in milliseconds."""
    spread = random.Random(1)
    wheel = TimerWheel()
    for number in range(pending):
        wheel.schedule(TimerEntry(name(-number - 1), spread.randrange(120_000, 3_600_000), nothing, "timeout"))
    wheel.next_deadline()
    return wheel


def wheel_at_once(wheel: TimerWheel, ids: Sequence[Hashable] = NUMBERS) -> float:
    started = time.perf_counter()
    for timer in ids:
        wheel.schedule(TimerEntry(timer, 30_000, nothing, "timeout"))
        wheel.cancel(timer)
    return per_operation_ns(started, len(ids))


def wheel_a_slice_later(wheel: TimerWheel, ids: Sequence[Hashable] = NUMBERS, batch: int = 1000) -> float:
    started = time.perf_counter()
    for first in range(0, len(ids), batch):
        slice_ids = ids[first : first + batch]
        for deadline, timer in enumerate(slice_ids, 30_000 + first):
            wheel.schedule(TimerEntry(timer, deadline, nothing, "timeout"))
        wheel.next_deadline()
        for timer in slice_ids:
            wheel.cancel(timer)
    return per_operation_ns(started, len(ids))


async def host_at_once(timers: int = 30_000) -> float:
    host = asyncio.get_running_loop()
    kept = [host.call_later(120 + number, nothing, number) for number in range(1000)]
    started = time.perf_counter()
    for number in range(timers):
        host.call_later(30 + number / 1000, nothing, number).cancel()
    taken = per_operation_ns(started, timers)
    for handle in kept:
        handle.cancel()
    return taken


async def host_a_slice_later(timers: int = 30_000, batch: int = 1000) -> float:
    host = asyncio.get_running_loop()
    kept = [host.call_later(120 + number, nothing, number) for number in range(1000)]
    started = time.perf_counter()
    for first in range(0, timers, batch):
        handles = [host.call_later(30 + number / 1000, nothing, number) for number in range(first, first + batch)]
        await asyncio.sleep(0)
        for handle in handles:
            handle.cancel()
    taken = per_operation_ns(started, timers)
    for handle in kept:
        handle.cancel()
    return taken


def measure_timers() -> dict[str, object]:
    wheel = full_wheel(1000)
    result: dict[str, object] = {"goal": {"asyncio": ">= 3", "uvloop": ">= 1.2"}}
    for name, factory in hosts().items():
        result[name] = {
            "at_once": versus(partial(wheel_at_once, wheel), hosted(factory, host_at_once)),
            "a_slice_later": versus(partial(wheel_a_slice_later, wheel), hosted(factory, host_a_slice_later)),
        }
    return result


def measure_pending() -> dict[str, object]:
    result: dict[str, object] = {"goal": "<= 1.5"}
    for word, name in (("numbers", by_number), ("texts", by_text)):
        few, many = full_wheel(1000, name), full_wheel(1_000_000, name)
        ids = [name(number) for number in NUMBERS]
        gc.collect()
        result[f"ids_are_{word}"] = {
            "at_once": at_sizes(partial(wheel_at_once, few, ids), partial(wheel_at_once, many, ids)),
            "a_slice_later": at_sizes(partial(wheel_a_slice_later, few, ids), partial(wheel_a_slice_later, many, ids)),
            "due": measure_due(many, name),
        }
        del few, many
    return result


def at_sizes(few: Measure, many: Measure) -> dict[str, float]:
    return compare(few, many, ("thousand_ns", "million_ns"), ROUNDS)


def measure_due(many: TimerWheel, name: Name) -> dict[str, float]:
    """Handing out 20,000 due timers that lie among the million, against the same with a thousand others."""
    few = full_wheel(1000, name)

    def due(wheel: TimerWheel, start: int, timers: int = 20_000) -> float:
        for number in range(timers):
            wheel.schedule(TimerEntry(name(number), start + number % 1000, nothing, "timeout"))
        started = time.perf_counter()
        for now in range(start, start + 1000):
            wheel.take_ready(now)
        return per_operation_ns(started, timers)

    starts_few, starts_many = (iter(range(1000, 100_000, 2000)) for _ in range(2))
    return at_sizes(lambda: due(few, next(starts_few)), lambda: due(many, next(starts_many)))


# Turns


def call_soon_chain(chains: int, turns: int) -> Callable[[], Coroutine[Any, Any, float]]:
    async def main() -> float:
        host = asyncio.get_running_loop()
        done: asyncio.Future[None] = host.create_future()
        call_soon = host.call_soon
        left = turns

        def step(argument: int) -> None:
            nonlocal left
            left -= 1
            if left > 0:
                call_soon(step, argument)
            elif not left:
                done.set_result(None)

        started = time.perf_counter()
        for number in range(chains):
            call_soon(step, number)
        await done
        return per_operation_ns(started, turns)

    return main


def loop_chain(chains: int, turns: int) -> Callable[[], Coroutine[Any, Any, float]]:
    async def main() -> float:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        left = turns
        with Loop().hosted() as loop:
            post = loop.post

            def step(argument: int) -> None:
                nonlocal left
                left -= 1
                if left > 0:
                    post(step, argument)
                elif not left:
                    done.set_result(None)

            started = time.perf_counter()
            for number in range(chains):
                post(step, number)
            await done
            return per_operation_ns(started, turns)

    return main


def measure_turns() -> dict[str, object]:
    result: dict[str, object] = {"goal": "one >= 2"}
    for name, factory in hosts().items():
        result[name] = {
            word: versus(
                hosted(factory, loop_chain(chains, 100_000)), hosted(factory, call_soon_chain(chains, 100_000))
            )
            for word, chains in (("one", 1), ("hundred", 100))
        }
    return result


# POLL


def measure_poll() -> dict[str, object]:
    """One ready watch among many idle ones: what waiting costs must depend on what is ready."""
    from mainspring.guests import Guest, Op

    frame = struct.Struct("<4sHHIIII")

    def request(op: int, payload: bytes) -> bytes:
        return frame.pack(b"ZCL1", 1, op, 1, 0, 0, len(payload)) + payload

    def polling(idle: int) -> tuple[Guest, Measure]:
        guest = Guest(max_handles=idle + 16)
        loop = guest.open("sys", "loop")
        for watch in range(1, idle + 2):
            descriptor = os.eventfd(1 if watch > idle else 0)
            handle = guest.attach(descriptor)
            os.close(descriptor)
            guest.write(loop, request(Op.WATCH, struct.pack("<IIQI", handle, 1, watch, 0)))
            guest.read(loop, 65536)
        poll = request(Op.POLL, struct.pack("<II", 16, 0))

        def measure() -> float:
            started = time.perf_counter()
            for _ in range(5000):
                guest.write(loop, poll)
                guest.read(loop, 65536)
            return per_operation_ns(started, 5000)

        return guest, measure

    few_guest, few = polling(10)
    many_guest, many = polling(10_000)
    with few_guest, many_guest:
        return {"goal": "<= 1.5", **compare(few, many, ("idle_10_ns", "idle_10000_ns"), ROUNDS)}


def main() -> None:
    global ROUNDS
    if options(__doc__).quick:
        ROUNDS = 1
    figures = {
        "timers": measure_timers(),
        "turns": measure_turns(),
        "poll": measure_poll(),
        "pending": measure_pending(),
    }
    conditions: Figures = {
        "hosts": list(hosts()),
        "rounds": ROUNDS,
        "garbage_collector": "on",
        "unit": "ns per operation; a timer operation is one schedule and one cancel",
    }
    report(figures, **conditions)


if __name__ == "__main__":
    main()
