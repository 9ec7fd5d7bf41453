"""How fast runs are, as ratios measured in one run, against bare coroutines, asyncio tasks and DBOS.

    python -m bench.runs [--quick] [--no-dbos]

Prints one JSON object. In memory: steps per second against a bare loop of `coro.send` and against asyncio tasks that
await futures, all over the same program on the same asyncio loop. Durable: steps per second on SQLite with every answer
fsynced, against DBOS on SQLite running the same workflow, with many runs at once and with one alone. Recovery: the time
until unfinished runs of a dead process are executed again, for growing numbers of them.
"""

from __future__ import annotations

import asyncio
import gc
import os
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bench.harness import options, report, summary, versus
from mainspring.log import Log, SqliteEngine
from mainspring.runs import Effect, Runtime, Sleep, WaitSignal
from mainspring.runs.effects import suspend

WARM_UP = 100  # steps before the clock starts, for both
TURN = 1024  # steps between two turns of the asyncio loop, the same for every contender


class Hop(Effect[int]):
    n: int


async def program(count: int, perform: Callable[[Hop], Awaitable[int]]) -> int:
    total = 0
    for n in range(count):
        total += await perform(Hop(n))
    return total


async def sleeper(perform: Any) -> None:
    await perform(Hop(1))
    await perform(Sleep(hours=24))


async def waiting(perform: Any) -> None:
    await perform(Hop(1))
    await perform(WaitSignal("never"))


# -- in memory


async def bare(runs: int, steps: int) -> float:
    """Nothing but `send`: the upper bound of anything written in Python."""
    ready: deque[tuple[Callable[[Any], Any], Any]] = deque((program(steps, suspend).send, None) for _ in range(runs))
    taken, begun = 0, time.perf_counter()
    while ready:
        send, answer = ready.popleft()
        try:
            effect = send(answer)
        except StopIteration:
            continue
        ready.append((send, effect.n))
        taken += 1
        if taken % TURN == 0:
            await asyncio.sleep(0)
    return runs * steps / (time.perf_counter() - begun)


async def tasks(runs: int, steps: int) -> float:
    """One asyncio task per run, one future per effect."""
    loop = asyncio.get_running_loop()

    def perform(effect: Hop) -> asyncio.Future[int]:
        future: asyncio.Future[int] = loop.create_future()
        loop.call_soon(future.set_result, effect.n)
        return future

    begun = time.perf_counter()
    for task in [loop.create_task(program(steps, perform)) for _ in range(runs)]:
        await task
    return runs * steps / (time.perf_counter() - begun)


async def mainspring(runs: int, steps: int) -> float:
    runtime = Runtime(max_steps_per_tick=TURN)
    runtime.handle(Hop, lambda effect, ctx: effect.n)
    begun = time.perf_counter()
    for run in [runtime.start(program, steps) for _ in range(runs)]:
        await run
    return runs * steps / (time.perf_counter() - begun)


def in_memory(runs: int, steps: int) -> dict[str, Any]:
    rounds = [[asyncio.run(contender(runs, steps)) for contender in (bare, mainspring, tasks)] for _ in range(5)]
    upper, ours, theirs = zip(*rounds, strict=True)
    return {
        "runs": runs,
        "steps_per_run": steps,
        "steps_per_s": {"mainspring": summary(ours), "bare_send": summary(upper), "asyncio_tasks": summary(theirs)},
        "to_bare_send": versus(ours, upper),
        "to_asyncio_tasks": versus(ours, theirs),
    }


async def steps_taken(runtime: Runtime, steps: int) -> None:
    while runtime.steps < steps:  # noqa: ASYNC110 (a benchmark may poll what the runtime does not announce)
        await asyncio.sleep(0)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def memory_per_run(runs: int) -> dict[str, Any]:
    runtime = Runtime()
    runtime.handle(Hop, lambda effect, ctx: effect.n)
    gc.collect()
    before = resident()
    started = [runtime.start(waiting) for _ in range(runs)]
    await steps_taken(runtime, 2 * runs)
    gc.collect()
    used = resident() - before
    for run in started:
        run.cancel()
    return {"concurrent_runs": runs, "bytes_per_run": used // runs}


# -- durable


async def open_runtime(folder: str) -> tuple[Runtime, Log]:
    log = Log(SqliteEngine(Path(folder) / "log.db"))
    await log.open()
    runtime = Runtime(log=log)
    runtime.handle(Hop, lambda effect, ctx: effect.n)
    runtime.register(program, "program")
    runtime.register(sleeper, "sleeper")
    return runtime, log


async def durable(runs: int, steps: int) -> float:
    """Durable effects per second of a log in use, the runs' beginnings and ends included."""
    with tempfile.TemporaryDirectory() as folder:
        runtime, log = await open_runtime(folder)
        await runtime.start_service()
        await runtime.start(program, WARM_UP, durable=True)
        begun = time.perf_counter()
        for run in [runtime.start(program, steps, durable=True, id=f"r{n}") for n in range(runs)]:
            await run
        rate = runs * steps / (time.perf_counter() - begun)
        await runtime.stop_service()
        await log.close()
    return rate


async def recovery(runs: int) -> float:
    """Seconds from opening the log until every unfinished run sleeps again."""
    with tempfile.TemporaryDirectory() as folder:
        runtime, log = await open_runtime(folder)
        await runtime.start_service()
        for n in range(runs):
            runtime.start(sleeper, durable=True, id=f"r{n}")
        await steps_taken(runtime, 2 * runs)
        await runtime.durable.quiet()
        await runtime.stop_service()
        await log.close()
        begun = time.perf_counter()
        runtime, log = await open_runtime(folder)
        await runtime.start_service()
        await steps_taken(runtime, 2 * runs)
        seconds = time.perf_counter() - begun
        await runtime.stop_service()
        await log.close()
    return seconds


def dbos_rates(runs: int, steps: int, alone: int) -> tuple[float, float]:
    """The same workflow on DBOS with its SQLite database: many at once, and one alone."""
    from dbos import DBOS

    with tempfile.TemporaryDirectory() as folder:
        config: Any = {
            "name": "bench",
            "system_database_url": f"sqlite:///{folder}/dbos.sqlite",
            "run_admin_server": False,
            "log_level": "ERROR",
        }
        DBOS(config=config)

        @DBOS.step()
        def hop(n: int) -> int:
            return n

        @DBOS.workflow()
        def workflow(count: int) -> int:
            return sum(hop(n) for n in range(count))

        DBOS.launch()
        workflow(WARM_UP)
        begun = time.perf_counter()
        workflow(alone)
        one = alone / (time.perf_counter() - begun)
        begun = time.perf_counter()
        for handle in [DBOS.start_workflow(workflow, steps) for _ in range(runs)]:
            handle.get_result()
        many = runs * steps / (time.perf_counter() - begun)
        DBOS.destroy()
    return many, one


def durable_part(quick: bool, with_dbos: bool) -> dict[str, Any]:
    runs, steps, alone = (100, 2, 20) if quick else (1000, 2, 50)
    theirs: list[tuple[float, float]] = []
    ours: list[tuple[float, float]] = []
    for _ in range(3):  # taking turns, so that a disk that is slow for a while is slow for both
        ours.append((asyncio.run(durable(runs, steps)), asyncio.run(durable(1, alone))))
        if with_dbos:  # a fifth of the runs: it takes its time
            theirs.append(dbos_rates(runs // 5, steps, alone))
    found: dict[str, Any] = {
        "concurrent_runs": runs,
        "steps_per_run": steps,
        "steps_of_one_alone": alone,
        "steps_per_s": _rates(ours),
        "steps_per_s_long_runs": asyncio.run(durable(runs, 10 * steps)),
    }
    if with_dbos:
        found["dbos_steps_per_s"] = _rates(theirs)
        found["to_dbos"] = {
            name: versus([mine[n] for mine in ours], [other[n] for other in theirs])
            for n, name in enumerate(("many", "alone"))
        }
    return found


def _rates(rates: list[tuple[float, float]]) -> dict[str, Any]:
    many, alone = zip(*rates, strict=True)
    return {"many": summary(many), "alone": summary(alone)}


def main() -> None:
    given = options(__doc__, no_dbos="leave the comparison with DBOS out")
    sizes = (250, 500, 1000) if given.quick else (2500, 5000, 10_000)
    report(
        {
            "in_memory": in_memory(100, 50) if given.quick else in_memory(1000, 200),
            "memory": asyncio.run(memory_per_run(2000 if given.quick else 100_000)),
            "durable": durable_part(given.quick, not given.no_dbos),
            "recovery_s": {str(size): asyncio.run(recovery(size)) for size in sizes},
        },
        own_loop="asyncio",
        warm_up_steps=WARM_UP,
        fsync="SQLite WAL, synchronous=FULL; DBOS: its SQLite defaults (rollback journal)",
        payload="one small integer per effect",
    )


if __name__ == "__main__":
    main()
