"""Boot: seven phases, a summary, and a failure that leaves nothing behind."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mainspring import App
from mainspring.errors import BootError
from mainspring.kernel import PHASES, CapabilityError, Kernel, NotConfigured
from mainspring.loop import VirtualClock
from mainspring.message import encode_line, parse
from tests.support.kernel import Worker, low_level, virtual
from tests.support.serving import Serving


@virtual
async def test_phases_come_in_their_order(clock: VirtualClock) -> None:
    """Checklist 33, 117: load, index, spawn, attach, adapters; the summary comes last."""
    app, order = App("order"), []

    class Noting(Worker):
        def add_event_listener(self, type: str, callback: Any) -> None:
            order.append((f"listen {type}", list(kernel.phases)))
            super().add_event_listener(type, callback)

    def spawn() -> Worker:
        order.append(("spawn", list(kernel.phases)))
        return Noting(lambda worker, given: None)

    app.low_level.append(low_level("Low", None, [], spawn=spawn))
    app.order.append("Low")
    kernel = app.kernel(clock=clock)
    kernel.enter_phase("LOAD")
    await kernel.start()
    kernel.enter_phase("ADAPT")
    seen: list[str] = []
    kernel.observe(lambda passing: seen.append(passing.type))
    kernel.ready(["unix:/some/path"])
    assert tuple(kernel.phases) == PHASES
    assert seen == ["Sys.BootComplete"]
    assert [(what, phases[-1]) for what, phases in order] == [
        ("spawn", "SPAWN"),
        ("listen message", "ATTACH"),
        ("listen error", "ATTACH"),
    ]
    with pytest.raises(BootError):
        kernel.enter_phase("SPAWN")
    await kernel.stop()


@virtual
async def test_the_summary_is_a_valid_message_that_says_what_runs(clock: VirtualClock) -> None:
    """Checklist 118, 119."""
    app = App("shop")
    app.command("Stock.Reserve")(lambda data, ctx: None)
    app.query("Stock.Count")(lambda data, ctx: None)
    app.on("Stock.Changed")(lambda data, ctx: None)
    app.on("Memory.Changed")(lambda data, ctx: None)
    kernel = app.kernel(clock=clock, default_timeout_ms=12_345)
    await kernel.start()
    message = kernel.ready(["unix:/run/k.sock"])
    found = parse(encode_line(message))
    assert (found.kind, found.type) == ("event", "Sys.BootComplete")
    data = found.data
    handles = {entry["id"]: entry["handles"] for entry in data["capabilities"]}
    assert handles["Stock"] == ["command:Stock.Reserve", "query:Stock.Count"]
    assert {"command:Timer.Schedule", "command:Timer.Cancel"} <= set(handles["Timer"])
    assert data["subscriptions"] == {"Stock.Changed": ["Stock"], "Memory.Changed": ["shop.Memory"]}
    assert data["adapters"] == ["unix:/run/k.sock"]
    assert data["timers"] == {"defaultTimeout": 12_345}
    await kernel.stop()


@virtual
async def test_a_spawn_that_fails_ends_the_actors_already_there(clock: VirtualClock) -> None:
    """Checklist 120, 121."""
    spawned: list[Worker] = []

    def fail() -> Worker:
        raise RuntimeError("spawn failed here")

    kernel = Kernel(clock=clock)
    kernel.register(low_level("Good", None, spawned), low_level("Bad", None, [], spawn=fail))
    with pytest.raises(BootError, match="spawn failed here"):
        await kernel.start()
    assert [worker.terminated for worker in spawned] == [True]
    await kernel.stop()


@virtual
async def test_what_spawn_gives_must_be_an_actor(clock: VirtualClock) -> None:
    """Checklist 78, 120."""
    kernel = Kernel(clock=clock)
    kernel.register(low_level("Bad", None, [], spawn=lambda: object()))
    with pytest.raises(BootError, match="post_message"):
        await kernel.start()


BROKEN: dict[str, Any] = {
    "a built-in's type": lambda app: app.query("Syscall.Ping")(lambda data, ctx: None),
    "a kernel type": lambda app: app.command("Sys.Anything")(lambda data, ctx: None),
    "no type at all": lambda app: app.command("nonsense")(lambda data, ctx: None),
    "too few parameters": lambda app: app.command("Bad.Do")(lambda data: None),
    "disagreeing handlers": lambda app: (
        app.command("Bad.Do", isolation="process")(lambda data, ctx: None),
        app.command("Bad.Other", isolation="task")(lambda data, ctx: None),
    ),
    "durable without a log": lambda app: app.command("Bad.Do", durable=True)(lambda data, ctx: None),
    "a name that is taken": lambda app: app.capability(
        id="Memory", description="x", inbound=None, outbound=None, spawn=lambda: None
    ),
}


@pytest.mark.parametrize("name", BROKEN)
@virtual
async def test_declarations_that_do_not_hold_together_fail_the_boot(clock: VirtualClock, name: str) -> None:
    """Checklist 120: with an error that says the remedy or the place."""

    async def boot() -> None:
        app = App("broken")
        BROKEN[name](app)
        await app.kernel(clock=clock).start()

    with pytest.raises(CapabilityError) as caught:
        await boot()
    assert caught.value.message


def test_a_type_hint_no_schema_can_have_is_refused_where_it_is_declared() -> None:
    """Checklist 120."""
    app = App("broken")

    class Opaque:
        def __init__(self, value: int) -> None: ...

    with pytest.raises(CapabilityError, match=r"Bad\.Do"):

        @app.command("Bad.Do")
        async def do(data: list[Opaque] | set[int], ctx: Any) -> None: ...


@virtual
async def test_asking_a_kernel_that_does_not_run_says_so(clock: VirtualClock) -> None:
    kernel = App("x").kernel(clock=clock)
    with pytest.raises(NotConfigured, match="not running"):
        await kernel.ask("query", "Syscall.Ping", {"payload": 1})
    async with kernel:
        for wrong in (("event", "A.B"), ("query", "not a type")):
            with pytest.raises(ValueError, match="not"):
                await kernel.ask(*wrong, {})
        with pytest.raises(ValueError, match="timeout"):
            await kernel.ask("query", "Syscall.Ping", {"payload": 1}, timeout=0)


def test_a_failed_boot_exits_non_zero_and_leaves_no_socket(tmp_path: Path) -> None:
    """Checklist 120, 122."""
    (tmp_path / "broken.py").write_text(
        "from mainspring import App\n"
        "app = App('broken')\n"
        "def spawn(): raise RuntimeError('spawn failed here')\n"
        "from dataclasses import dataclass\n"
        "from typing import Literal\n"
        "@dataclass\n"
        "class In:\n    kind: Literal['command']\n    type: Literal['Bad.Do']\n    data: dict\n"
        "app.capability(id='Bad', description='x', inbound=In, outbound=In, spawn=spawn)\n"
    )
    serving = Serving("broken:app", folder=tmp_path, env={"PYTHONPATH": str(tmp_path)})
    done = subprocess.run(
        serving.command, cwd=tmp_path, env=serving.env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode > 0
    said = json.loads(done.stdout.splitlines()[0])
    assert (said["kind"], said["type"]) == ("error", "Sys.BootFailed")
    assert "spawn failed here" in said["data"]["message"]
    assert not os.path.lexists(serving.kernel_socket)


@virtual
async def test_the_six_parts_are_separable(clock: VirtualClock) -> None:
    """Checklist 144: loop, lanes, wheel, router, actor manager and NDJSON adapter are classes of their own."""
    for module, name in (
        ("loop", "Loop"),
        ("loop", "Lanes"),
        ("loop", "TimerWheel"),
        ("kernel.exchange", "Router"),
        ("kernel.supervisor", "ActorSlot"),
        ("server.ndjson", "NdjsonServer"),
    ):
        assert getattr(importlib.import_module(f"mainspring.{module}"), name)


@virtual
async def test_routing_does_not_care_how_many_capabilities_there_are(clock: VirtualClock) -> None:
    """Checklist 3, 59."""
    app, went = App("many"), []
    for number in range(2000):
        app.command(f"Cap{number}.Do")(lambda data, ctx, number=number: went.append(number))
    async with app.kernel(clock=clock) as kernel:
        for number in (0, 999, 1999):
            await kernel.ask("command", f"Cap{number}.Do", {})
    assert went == [0, 999, 1999]
