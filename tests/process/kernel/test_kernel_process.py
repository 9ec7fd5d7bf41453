"""Actors in processes of their own; the tests really kill, block and exhaust them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from mainspring import App, Fail
from mainspring.errors import BootError
from mainspring.kernel import CapabilityError, Kernel
from mainspring.message import Message
from tests.support import kernel_programs as programs
from tests.support.paths import ROOT


@pytest.fixture
async def kernel(tmp_path: Path) -> AsyncIterator[Kernel]:
    async with programs.apart.kernel(data_dir=tmp_path) as running:
        yield running


def running(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False


async def gone(pid: int) -> None:
    for _ in range(1000):
        if not running(pid):
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"process {pid} still runs")


async def test_handlers_of_one_capability_share_a_process_of_their_own(kernel: Kernel) -> None:
    pid = await kernel.ask("command", "Apart.Pid", {})
    assert pid != os.getpid()
    assert pid == await kernel.ask("command", "Apart.Pid", {})
    nested = await kernel.ask("query", "Nested.Pid", {})
    assert nested not in (pid, os.getpid()), "a function made inside a function is found too"


async def test_everything_a_handler_can_say_works_from_there(kernel: Kernel) -> None:
    """Checklist 73, 75: the same lineage."""
    passed: list[Message] = []
    kernel.observe(passed.append)
    told = await kernel.ask("command", "Apart.Talk", {"n": 21}, correlation="flow")
    assert (told["told"], told["refused"]) == (42, 404)
    assert await kernel.ask("command", "Timer.Cancel", {"timerId": told["timer"]}) == {"cancelled": True}
    caused = {each.type: each.metadata for each in passed if each.metadata.causation == told["id"]}
    assert {"Apart.Said", "Here.Double", "No.Such", "Apart.Talk"} <= set(caused)
    assert {each.correlation for each in caused.values()} == {"flow"}
    with pytest.raises(Fail) as caught:
        await kernel.ask("command", "Apart.Refuse", {})
    assert (caught.value.code, caught.value.message, caught.value.remedy) == (409, "not now", "later")


async def test_every_listener_there_hears_an_event_once(kernel: Kernel) -> None:
    """Checklist 63."""
    heard: list[Any] = []
    kernel.observe(lambda passing: heard.append(passing.data["ear"]) if passing.type == "Apart.Heard" else None)
    kernel.emit("Far.Event", {})
    await kernel.quiescent()
    assert heard == [1, 2]


async def test_a_process_that_dies_is_a_crash_and_is_replaced(kernel: Kernel) -> None:
    """Checklist 124, 129: mail behind it waits for the next process."""
    first = await kernel.ask("command", "Apart.Pid", {})
    dying = asyncio.ensure_future(kernel.ask("command", "Apart.Die", {}))
    behind = asyncio.ensure_future(kernel.ask("command", "Apart.Pid", {}))
    with pytest.raises(Fail, match="status 3") as caught:
        await dying
    assert caught.value.type == "Sys.ActorCrash"
    assert await behind not in (first, os.getpid())


async def test_a_process_killed_from_outside_is_replaced(kernel: Kernel) -> None:
    """Checklist 124."""
    pid = await kernel.ask("command", "Apart.Pid", {})
    noticed = asyncio.Event()
    kernel.observe(lambda passing: noticed.set() if passing.type == "Sys.ActorCrash" else None)
    os.kill(pid, signal.SIGKILL)
    await noticed.wait()
    assert await kernel.ask("command", "Apart.Pid", {}) != pid
    spinning = asyncio.ensure_future(kernel.ask("command", "Apart.Spin", {}))
    await kernel.ask("query", "Here.Double", 1)
    slot = kernel.exchange.router.slots["Apart"]
    os.kill(slot.actor.child.pid, signal.SIGKILL)
    with pytest.raises(Fail, match="signal 9"):
        await spinning


async def test_a_blocked_cpu_there_leaves_the_kernel_responsive(kernel: Kernel) -> None:
    """Checklist 1, 138, 142: it times out like any other; terminating it really ends it."""
    pid = await kernel.ask("command", "Apart.Pid", {})
    with pytest.raises(Fail) as caught:
        await kernel.ask("command", "Apart.Spin", {}, timeout=0.2)
    assert caught.value.code == 504
    for number in range(20):
        assert await kernel.ask("query", "Here.Double", number) == number * 2
    assert running(pid)
    await kernel.stop()
    assert not running(pid)


async def test_memory_that_runs_out_there_is_a_crash_there(kernel: Kernel) -> None:
    """Checklist 124."""
    pid = await kernel.ask("command", "Apart.Pid", {})
    with pytest.raises(Fail) as caught:
        await kernel.ask("command", "Apart.Leak", {})
    assert caught.value.type == "Sys.ActorCrash"
    assert await kernel.ask("command", "Apart.Pid", {}) != pid


async def test_exceptions_and_wrong_outputs_are_faults_as_everywhere(kernel: Kernel) -> None:
    """Checklist 123, 124."""
    for type, text, fault in (
        ("Apart.Raise", "boom over there", "Sys.ActorCrash"),
        ("Apart.Wrong", "invalid output", "Sys.ActorFault"),
    ):
        with pytest.raises(Fail, match=text) as caught:
            await kernel.ask("command", type, {})
        assert caught.value.type == fault
    with pytest.raises(Fail) as caught:
        await kernel.ask("command", "Apart.Pid", {"n": "text"})
    assert caught.value.code == 422


async def test_a_blob_made_there_is_a_file_here(kernel: Kernel) -> None:
    """Checklist 154."""
    pointer = await kernel.ask("command", "Apart.Blob", {"n": 50_000})
    assert Path(pointer["path"]).read_bytes() == b"x" * 50_000


async def test_a_low_level_actor_can_live_there_too(kernel: Kernel) -> None:
    """Checklist 80, 88, 93."""
    first = await kernel.ask("command", "LowApart.Do", {})
    assert first["pid"] != os.getpid()
    for data, text, fault in (
        ({"die": 1}, "status 4", "Sys.ActorCrash"),
        ({"raise": 1}, "low boom", "Sys.ActorCrash"),
        ({"wrong": 1}, "invalid output", "Sys.ActorFault"),
    ):
        with pytest.raises(Fail, match=text) as caught:
            await kernel.ask("command", "LowApart.Do", data)
        assert caught.value.type == fault
    last = await kernel.ask("command", "LowApart.Do", {})
    assert last["pid"] != first["pid"]
    assert not running(first["pid"])


async def test_stopping_waits_for_every_process_to_be_gone(tmp_path: Path) -> None:
    """Checklist 36."""
    async with programs.apart.kernel(data_dir=tmp_path) as kernel:
        pids = [await kernel.ask("command", "Apart.Pid", {}), (await kernel.ask("command", "LowApart.Do", {}))["pid"]]
        assert all(map(running, pids))
    assert not any(map(running, pids))


async def test_draining_finishes_what_a_process_is_doing(kernel: Kernel) -> None:
    """Checklist 36."""
    asking = asyncio.ensure_future(kernel.ask("command", "Apart.Talk", {"n": 1}))
    await asyncio.sleep(0)
    assert await kernel.drain(20_000)
    assert (await asking)["told"] == 2


async def test_a_program_that_cannot_begin_there_fails_the_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checklist 120, 121."""
    monkeypatch.setenv("PROGRAM_BREAKS_APART", "1")
    kernel = programs.apart.kernel(data_dir=tmp_path)
    with pytest.raises(BootError, match="cannot be imported here"):
        await kernel.start()
    await kernel.stop()


async def test_a_function_no_other_process_can_find_fails_the_boot() -> None:
    """Checklist 120."""
    app = App("hidden")

    @app.command("Hidden.Do", isolation="process")
    def do(data: dict, ctx: Any) -> None: ...

    with pytest.raises((CapabilityError, BootError), match="cannot find"):
        await app.kernel().start()


async def test_a_process_ends_with_its_node(tmp_path: Path) -> None:
    """A node that is killed leaves no process behind, not even a spinning one."""
    script = tmp_path / "node.py"
    script.write_text(
        "import asyncio\n"
        "from tests.support import kernel_programs as programs\n"
        "async def main():\n"
        "    async with programs.apart.kernel() as kernel:\n"
        "        print(await kernel.ask('command', 'Apart.Pid', {}), flush=True)\n"
        "        await kernel.ask('command', 'Apart.Spin', {})\n"
        "asyncio.run(main())\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    node = await asyncio.create_subprocess_exec(sys.executable, str(script), env=env, stdout=asyncio.subprocess.PIPE)
    assert node.stdout is not None
    pid = int(await node.stdout.readline())
    await asyncio.sleep(0.1)
    node.kill()
    await node.wait()
    await gone(pid)
