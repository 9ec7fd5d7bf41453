"""Real nodes on a real server: the process that executes a run, or leads the beats, is killed or stopped."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import SERVERS, ServedNode, Site, eventually, site

PROGRAM = """
from mainspring import App
from mainspring.runs import Publish, Sleep, WaitEvent, WaitSignal

app = App("shop")


@app.run(name="order")
async def order(number: int, perform) -> dict:
    notes = []

    @perform.query
    def noted() -> list[str]:
        return notes

    @perform.update
    def note(text: str) -> int:
        notes.append(text)
        return len(notes)

    await perform(Publish("begun", {"number": number}))
    await perform(Sleep(ms=200))
    paid = await perform(WaitSignal("paid"))
    shipped = await perform(WaitEvent("shipped", filter={"number": number}))
    await perform(Publish("done", {"number": number}))
    return {"paid": paid, "shipped": shipped["payload"]["by"]}


@app.enzyme("/topics/shipped", match="prefix")
def note(signal, target, stage):
    number = stage.read(signal)["payload"]["number"]
    stage.write(f"/shipped/{number}", (stage.read(f"/shipped/{number}") or 0) + 1)


@app.enzyme("/jobs", match="prefix")
def work(signal, target, stage):
    stage.write(f"/seen{signal}", (stage.read(f"/seen{signal}") or 0) + 1)


app.beats_from("shipped")
"""


MEMORY = {"kind": "query", "type": "Memory.Get", "data": {"key": "/till"}}


@pytest.fixture(params=sorted(SERVERS))
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr("tests.support.processes.PROGRAM", PROGRAM)
    with site(tmp_path, request.param) as found:
        yield found


def say(node: ServedNode, kind: str, type: str, **data: Any) -> Any:
    """The data of the answer; an answer that says no is an error here."""
    status, answer = node.ask("POST", "/messages", {"kind": kind, "type": type, "data": data})
    assert status == 200, f"{type}: {status} {answer}"
    return answer["data"]


def ask_notes(node: ServedNode) -> Any:
    """What the program answers; a run that was just taken over may not be there yet."""
    asked = {"kind": "query", "type": "Run.Query", "data": {"id": "run-1", "name": "noted"}}

    def answered() -> Any:
        status, answer = node.ask("POST", "/messages", asked)
        return answer if status == 200 else None

    return eventually(answered, "an answer of the run")["data"]["value"]


def state_of(node: ServedNode, run_id: str) -> dict[str, Any]:
    found: dict[str, Any] = say(node, "query", "Run.Outcome", id=run_id)
    return found


def waits_for_event(node: ServedNode, run_id: str) -> bool:
    last = say(node, "query", "Run.History", id=run_id)["journal"][-1]
    return bool(last["effect"] == "WaitEvent" and "position" in last.get("note", {}))


def owners(node: ServedNode, count: int) -> dict[str, str]:
    return {f"run-{n}": state_of(node, f"run-{n}").get("owner", "") for n in range(count)}


def seen(node: ServedNode, paths: Iterable[str]) -> dict[str, Any]:
    return {path: say(node, "query", "Beat.Read", path=path)["value"] for path in paths}


def seen_all(node: ServedNode, paths: Iterable[str]) -> bool:
    return all(seen(node, paths).values())


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_runs_and_beats_go_on_when_their_node_does_not(place: Site, how: str) -> None:
    a, b = place.node("a", "shop:app"), place.node("b", "shop:app")
    count = 6
    for n in range(count):
        assert say(a, "command", "Run.Start", program="order", args=[n], id=f"run-{n}")["id"] == f"run-{n}"
        assert state_of(b, f"run-{n}")["state"] == "running", "known everywhere when it is answered"
    for n in range(count):
        say(b, "command", "Run.Start", program="order", args=[n], id=f"run-{n}")  # the same run
    say(a, "command", "Beat.Signal", signal="/jobs/1")
    say(b, "command", "Beat.Signal", signal="/jobs/2")
    assert set(owners(b, count).values()) == {"a"}
    say(a, "command", "Memory.Set", key="/till", value={"cents": 5})
    eventually(lambda: b.ask("POST", "/messages", MEMORY)[1].get("data") == {"value": {"cents": 5}}, "memory on b")
    eventually(lambda: len(b.payloads("begun")) == count, "every run published that it began")
    assert say(b, "command", "Run.Signal", id="run-0", name="paid", value=10)["signalled"]

    for n, each in enumerate((a, b, b)):
        assert say(each, "command", "Run.Update", id="run-1", name="note", args=[str(n)])["value"] == n + 1
    for each in (a, b):
        assert say(each, "query", "Run.Query", id="run-1", name="noted")["value"] == ["0", "1", "2"]

    a.process.kill() if how == "killed" else a.process.signal(signal.SIGSTOP)
    eventually(lambda: set(owners(b, count).values()) == {"b"}, "the runs went over to b")
    assert ask_notes(b) == ["0", "1", "2"]
    for n in range(1, count):
        say(b, "command", "Run.Signal", id=f"run-{n}", name="paid", value=n)
    eventually(lambda: all(waits_for_event(b, f"run-{n}") for n in range(count)), "every run waits for its event")
    for n in range(count):
        assert b.publish("shipped", {"number": n, "by": "b"}) == 201
    if how == "stopped":
        a.process.signal(signal.SIGCONT)
    eventually(lambda: all(state_of(b, f"run-{n}")["state"] == "done" for n in range(count)), "an outcome of each")
    for n in range(count):
        assert state_of(b, f"run-{n}")["value"] == {"paid": n or 10, "shipped": "b"}
    numbers = list(range(count))
    assert sorted(each["number"] for each in b.payloads("begun")) == numbers
    assert sorted(each["number"] for each in b.payloads("done")) == numbers

    living = [b] if how == "killed" else [a, b]
    for each in living:
        say(each, "command", "Beat.Signal", signal=f"/jobs/{3 + living.index(each)}")
    paths = ("/seen/jobs/1", "/seen/jobs/2", *(f"/shipped/{n}" for n in range(count)), "/seen/jobs/3")
    for each in living:
        eventually(partial(seen_all, each, paths), f"everything, as {each.process.folder.name} reads it")
        assert seen(each, paths) == dict.fromkeys(paths, 1)
    eventually(
        lambda: len({say(each, "query", "Beat.Standing")["digest"] for each in living}) == 1, "one chain of digests"
    )
    assert say(living[0], "command", "Beat.Run")["beat"] > 0
    if how == "stopped":
        assert [state_of(a, f"run-{n}") for n in range(count)] == [state_of(b, f"run-{n}") for n in range(count)]
