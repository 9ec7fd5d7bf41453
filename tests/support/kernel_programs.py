"""Programs the kernel's tests run in nodes and processes of their own."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mainspring import App, Fail, RestartPolicy
from mainspring.kernel import Blob, BufferedActor

# --- an app whose work is done in other processes ----------------------------------------------------------------

apart = App("apart", restart=RestartPolicy(max_restarts=3, window_ms=60_000, backoff_ms=50))


@dataclass
class Task:
    n: int = 0


@apart.command("Apart.Pid", isolation="process", memory_mb=2048)
async def pid(data: Task, ctx: Any) -> int:
    return os.getpid()


@apart.command("Apart.Die")
def die(data: Task, ctx: Any) -> int:
    os._exit(3)


@apart.command("Apart.Spin")
def spin(data: Task, ctx: Any) -> int:
    while True:
        pass


@apart.command("Apart.Leak")
def leak(data: Task, ctx: Any) -> int:
    kept = []
    while True:
        kept.append(bytearray(64 << 20))


@apart.command("Apart.Raise")
def fail(data: Task, ctx: Any) -> int:
    raise RuntimeError("boom over there")


@apart.command("Apart.Refuse")
def refuse(data: Task, ctx: Any) -> int:
    raise Fail(409, "not now", remedy="later")


@apart.command("Apart.Wrong")
def wrong(data: Task, ctx: Any) -> int:
    return "not a number"  # type: ignore[return-value]


@apart.command("Apart.Blob")
def blob(data: Task, ctx: Any) -> Blob:
    return Blob(b"x" * data.n)


@apart.command("Apart.Talk")
async def talk(data: Task, ctx: Any) -> dict:
    ctx.emit("Apart.Said", {"n": data.n})
    await ctx.sleep(0.01)
    told = await ctx.send("query", "Here.Double", data.n)
    timer = ctx.after(3600, "command", "Here.Double", 1)
    try:
        await ctx.send("query", "No.Such", {})
    except Fail as error:
        return {"told": told, "timer": timer, "refused": error.code, "id": ctx.message.id}
    raise AssertionError("an unknown type was answered")


@apart.on("Far.Event")
def first_ear(data: dict, ctx: Any) -> None:
    ctx.emit("Apart.Heard", {"ear": 1, "pid": os.getpid()})


@apart.on("Far.Event")
def second_ear(data: dict, ctx: Any) -> None:
    ctx.emit("Apart.Heard", {"ear": 2, "pid": os.getpid()})


@apart.query("Here.Double")
def double(data: int, ctx: Any) -> int:
    return data * 2


def nested(target: App) -> None:
    @target.query("Nested.Pid", isolation="process")
    def inner(data: dict, ctx: Any) -> int:
        return os.getpid()


nested(apart)


@dataclass
class LowIn:
    kind: Literal["command"]
    type: Literal["LowApart.Do"]
    data: dict


@dataclass
class LowOut:
    kind: Literal["reply"]
    type: Literal["LowApart.Do"]
    data: dict


def low_handler(message: Any) -> list[Any]:
    data = message.data
    if data.get("die"):
        os._exit(4)
    if data.get("raise"):
        raise RuntimeError("low boom")
    metadata = {"id": f"{os.getpid()}-{message.id}", "timestamp": 1, "causation": message.id}
    answer = {"pid": os.getpid()} if not data.get("wrong") else {1, 2}
    return [{"kind": "reply", "type": "LowApart.Do", "data": answer, "metadata": metadata}]


apart.capability(
    id="LowApart",
    description="A Worker in a process of its own.",
    inbound=LowIn,
    outbound=LowOut,
    spawn=lambda: BufferedActor(low_handler),
    isolation="process",
)

# --- an app that cannot begin over there -------------------------------------------------------------------------

if os.environ.get("PROGRAM_BREAKS_APART") and __name__ != "__main__":
    raise RuntimeError("this program cannot be imported here")


# --- an app with durable commands -------------------------------------------------------------------------------

durable = App("durable", concurrency=1, restart=RestartPolicy(max_restarts=3, window_ms=60_000, backoff_ms=50))
NOTES = Path(os.environ.get("PROGRAM_NOTES", os.devnull))


def note(text: str) -> None:
    with NOTES.open("a") as notes:
        notes.write(text)


@durable.command("Work.Do", durable=True)
async def work(data: dict, ctx: Any) -> dict:
    """Notes that it ran, then works as long as it is told: a kill in between leaves no outcome."""
    note(f"{ctx.message.id} {data['n']}\n")
    await ctx.sleep(data.get("s", 0))
    if data.get("fail"):
        raise Fail(409, "no")
    return {"n": data["n"]}


@durable.query("Work.Ask")
async def ask(data: dict, ctx: Any) -> str:
    return "answered"
