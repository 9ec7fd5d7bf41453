"""Journals of yesterday against the programs of today, and the command line that does it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from mainspring.cli.node.log import app as log_command
from mainspring.cli.program.runs import app as runs_command
from mainspring.errors import MainspringError
from mainspring.log import Log, LogMissing, SqliteEngine, log_file
from mainspring.loop import VirtualClock
from mainspring.runs import History, Join, Programs, Runtime, Sleep, Spawn, Version, check
from tests.support.runs import Boom, Hop, World, memory_log


async def helper(n: int, perform: Any) -> int:
    return await perform(Hop(n)) + 1


async def grouping(perform: Any) -> int:
    async with perform.group() as group:
        child = group.spawn(helper, 4)
    await perform(Hop(1))
    return child.outcome_now().value


def spawning() -> Any:
    child = yield Spawn(helper, (4,))
    outcome = yield Join(child)
    return outcome.value


async def napping(perform: Any) -> int:
    first = await perform(Hop(1))
    await perform(Sleep(hours=1))
    return first


async def failing(perform: Any) -> None:
    await perform(Hop(1))
    raise Boom("as always")


PROGRAMS = (helper, grouping, spawning, napping, failing)


async def histories() -> list[History]:
    log = await memory_log()
    world = World(log=log)
    for program in PROGRAMS:
        world.runtime.register(program, program.__name__)
    for program in PROGRAMS[1:]:
        world.runtime.start(program, durable=True, id=program.__name__)
    await world.runtime.settle()
    store = world.runtime.durable.store
    return [await store.history(record.id) for record in await store.runs()]


def registered(**changed: Any) -> Programs:
    programs = Programs()
    for program in PROGRAMS:
        programs.register(changed.get(program.__name__, program), program.__name__)
    return programs


async def problems(found: list[History], **changed: Any) -> dict[str, str]:
    return {verdict.id: verdict.problem for verdict in check(found, registered(**changed)) if verdict.problem}


async def test_unchanged_programs_fit_their_journals() -> None:
    found = await histories()
    assert {history.run.id for history in found} >= {"grouping", "grouping~1", "spawning", "napping", "failing"}
    assert await problems(found) == {}


async def test_a_changed_argument_is_named() -> None:
    async def changed(perform: Any) -> int:
        return await perform(Hop(2))

    found = await problems(await histories(), napping=changed)
    assert "n: 1 in the journal, 2 in the program" in found["napping"]


async def test_a_removed_and_an_added_effect_are_named() -> None:
    async def shorter(perform: Any) -> int:
        return await perform(Hop(1))

    async def longer(n: int, perform: Any) -> int:
        return await perform(Hop(n)) + await perform(Hop(n))

    found = await problems(await histories(), napping=shorter, helper=longer)
    assert "program: returned" in found["napping"]
    assert "(nothing more)" in found["grouping~1"]


async def test_another_value_and_a_new_failure_are_named() -> None:
    async def off_by_one(n: int, perform: Any) -> int:
        return await perform(Hop(n))

    async def broken(perform: Any) -> int:
        await perform(Hop(1))
        raise Boom("new")

    found = await problems(await histories(), helper=off_by_one, napping=broken)
    assert "another value" in found["grouping~1"]
    assert "Boom: new" in found["napping"]


async def test_a_gated_change_fits() -> None:
    async def gated(perform: Any) -> int:
        first = await perform(Hop(1))
        if await perform(Version("pause", 2)) == 1:
            await perform(Sleep(hours=1))
        return first

    assert await problems(await histories(), napping=gated) == {}


async def test_changed_parameters_and_missing_programs_do_not_fit() -> None:
    async def more(n: int, m: int, perform: Any) -> int:
        return n

    found = await histories()
    assert "arguments" in (await problems(found, helper=more))["grouping~1"]
    assert all("no program" in verdict.problem for verdict in check(found, Programs()))


# -- the command line

APP = """
from mainspring import App
from mainspring.runs import Effect, Sleep, resume

app = App("shop")

class Charge(Effect[int]):
    amount: int

@app.handles(Charge)
def charge(effect, ctx):
    return resume(effect.amount)

@app.run
async def checkout(amount: int, perform):
    paid = await perform(Charge(amount))
    await perform(Sleep(hours=1))
    return paid
"""


def invoke(*words: str) -> Any:
    return CliRunner().invoke(runs_command, list(words))


def offline(*words: str) -> Any:
    """`mainspring log runs`, which needs no node."""
    return CliRunner().invoke(log_command, ["runs", *words])


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A module of its own for each test, with a run of its program in ./data."""
    name = f"shop_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    async def run_some() -> None:
        from importlib import import_module

        log = Log(SqliteEngine(log_file("data")))
        await log.open()
        runtime = Runtime(clock=VirtualClock(wall_ms=1_700_000_000_000), log=log)
        import_module(name).app.install_runs(runtime)
        await runtime.start_service()
        for n in (1, 2):
            runtime.start("checkout", n * 10, durable=True, id=f"order-{n}")
        await runtime.elapse(10)
        runtime.get("order-2").cancel("changed their mind")  # type: ignore[union-attr]
        await runtime.settle()
        await runtime.stop_service()
        await log.close()

    asyncio.run(run_some())
    return name


def test_runs_are_listed_and_shown_without_a_node(shop: str) -> None:
    listed = offline()
    assert listed.exit_code == 0, listed.output
    assert [line.split()[:2] for line in listed.output.splitlines()[1:]] == [
        ["order-2", "cancelled"],
        ["order-1", "running"],
    ]
    assert json.loads(offline("--state", "cancelled", "--json").output)["id"] == "order-2"
    shown = offline("order-1").output
    assert "run order-1  checkout[10]  running" in shown
    assert 'Charge {"amount":10}  -> 10' in shown
    assert 'Sleep {"ms":3600000}  ... unanswered' in shown
    assert "changed their mind" in offline("order-2").output


def test_check_reads_what_show_writes(shop: str) -> None:
    journals = Path("journals")
    journals.mkdir()
    for run_id in ("order-1", "order-2"):
        (journals / f"{run_id}.json").write_text(offline(run_id, "--json").output)
    good = invoke("check", f"{shop}:app", str(journals))
    assert good.exit_code == 0, good.output
    assert "ok   order-1  checkout  1 effects" in good.output
    changed = APP.replace("Charge(amount)", "Charge(amount + 1)")
    Path(f"{shop}_changed.py").write_text(changed)
    bad = invoke("check", f"{shop}_changed:app", str(journals))
    assert bad.exit_code == 1
    assert "amount: 10 in the journal, 11 in the program" in bad.output


def test_a_file_that_is_no_journal_is_named(shop: str) -> None:
    Path("other.json").write_text('{"something": "else"}')
    result = invoke("check", f"{shop}:app", "other.json")
    assert isinstance(result.exception, MainspringError)
    assert "other.json" in str(result.exception)


def test_unknown_runs_and_absent_nodes_are_errors_with_a_remedy(shop: str, tmp_path: Path) -> None:
    unknown = offline("nobody")
    assert isinstance(unknown.exception, MainspringError)
    for words in (["start", "checkout", "1"], ["signal", "a", "b"], ["cancel", "a"], ["retry", "a"]):
        result = invoke(*words, "--socket", str(tmp_path / "nothing.sock"))
        assert isinstance(result.exception, MainspringError), result.output
        assert result.exception.remedy


def test_a_history_is_json_both_ways() -> None:
    found = asyncio.run(histories())
    for history in found:
        text = msgspec.json.encode(history)
        assert msgspec.json.encode(msgspec.json.decode(text, type=History)) == text


def test_where_there_is_no_log_the_remedy_is_said_and_none_is_made(tmp_path: Path) -> None:
    listed = offline("--data", str(tmp_path / "nowhere"))
    assert isinstance(listed.exception, LogMissing)
    assert "--data" in listed.exception.remedy
    assert not (tmp_path / "nowhere").exists()
