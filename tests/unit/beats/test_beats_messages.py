"""Beats by message and by declaration."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mainspring.beats import BeatsProgram, Heartbeat
from mainspring.beats.errors import InvalidRegistration
from mainspring.builtin import beat_capability
from mainspring.kernel import Fail, Kernel
from mainspring.log import Log, MemoryEngine


async def test_signals_beats_and_reads_are_messages() -> None:
    log = Log(MemoryEngine())
    await log.open()
    hb = Heartbeat(log=log)
    await hb.open()
    hb.register("a", "/sig", lambda signal, target, stage: stage.write("/x", {"beat": stage.beat}))
    kernel = Kernel()
    kernel.register(beat_capability(hb))
    async with kernel:
        assert await kernel.ask("command", "Beat.Signal", {"signal": "/sig"}) == {"beat": 1}
        assert await kernel.ask("command", "Beat.Signal", {"signal": "/other", "beat": 4}) == {"beat": 4}
        again = Heartbeat(log=log)
        await again.open()
        assert again.waiting == 1, "answered when it was durable"
        ran = await kernel.ask("command", "Beat.Run", {"beats": 4})
        assert (ran["beat"], ran["runs"]) == (4, 1)
        assert [(note["beat"], note["code"]) for note in ran["diagnostics"]] == [(4, "no_match")]
        assert await kernel.ask("query", "Beat.Read", {"path": "/x"}) == {"value": {"beat": 1}}
        assert await kernel.ask("query", "Beat.Read", {"path": "/x", "at": 1}) == {"value": None}
        agenda = await kernel.ask("query", "Beat.Read", {"path": "/rt/beat/1/agenda"})
        assert [entry["enzyme"] for entry in agenda["value"]] == ["a"]
        assert (await kernel.ask("command", "Beat.Pause", {}))["paused"]
        assert (await kernel.ask("query", "Beat.Standing", {})) == {
            "beat": 5,
            "digest": hb.digest,
            "paused": True,
            "waiting": 0,
        }
        assert not (await kernel.ask("command", "Beat.Resume", {}))["paused"]
        assert await kernel.ask("command", "Beat.Fork", {"at": 2, "name": "second"}) == {"line": "second", "beat": 3}
        for kind, type, data, code in (
            ("command", "Beat.Signal", {"signal": "sig"}, 422),
            ("command", "Beat.Signal", {}, 422),
            ("command", "Beat.Signal", {"signal": "/sig", "beat": 2}, 409),
            ("query", "Beat.Read", {"path": "/x", "at": 99}, 404),
            ("command", "Beat.Run", {"beats": 0}, 422),
            ("command", "Beat.Fork", {"at": 2, "name": "second"}, 409),
        ):
            with pytest.raises(Fail) as refused:
                await kernel.ask(kind, type, data)
            assert refused.value.code == code, (type, data)
    await log.close()


async def test_many_commands_at_once_take_turns() -> None:
    log = Log(MemoryEngine())
    await log.open()
    hb = Heartbeat(log=log)
    await hb.open()
    hb.register("a", "/sig/*", lambda signal, target, stage: stage.write(signal, stage.beat))
    kernel = Kernel()
    kernel.register(beat_capability(hb))
    async with kernel:
        await asyncio.gather(
            *(kernel.ask("command", "Beat.Signal", {"signal": f"/sig/{i}"}) for i in range(20)),
            *(hb.abeat() for _ in range(5)),
            *(hb.aflush() for _ in range(5)),
        )
        await hb.abeat()
    assert len(hb.paths("/sig")) == 20
    assert (await hb.areplay()).identical
    await log.close()


def test_a_program_declares_and_a_heartbeat_installs() -> None:
    program = BeatsProgram()
    calls: list[str] = []

    @program.enzyme("/signals/image/thumbnail", after=["metadata"])
    def resize(signal: str, target: str, stage: Any) -> None:
        calls.append("resize")

    @program.enzyme("/signals/image", name="metadata", match="prefix")
    def read_metadata(signal: str, target: str, stage: Any) -> None:
        calls.append("metadata")

    assert not BeatsProgram()
    program.bind("/env", "resize")
    program.bind("/env", "metadata")
    program.unbind("/env/private", "resize")
    program.bind("/env/one", "other", propagate=False)
    program.beats_from("images")
    assert program
    assert [topic.topic for topic in program.topics] == ["images"]
    hb = Heartbeat()
    program.install(hb)
    program.install(hb)
    assert hb.resolve("/signals/image/thumbnail", "/env/x") == ["metadata", "resize"]
    assert hb.resolve("/signals/image/thumbnail", "/env/private/x") == ["metadata"]
    hb.signal("/signals/image/thumbnail", "/env/x")
    hb.beat()
    assert calls == ["metadata", "resize"]
    with pytest.raises(InvalidRegistration):
        program.enzyme("/x", before="resize")(resize)
