"""A node that a story talks to: simulated, in this process, or a `mainspring serve` process. The verbs are the same.

Stories use short durations and wait for conditions (`until`), never for time: a simulation jumps there, a real node
takes as long as it takes.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from mainspring import App, connect
from mainspring.client import Client
from mainspring.testing import World, serving, simulate
from tests.support.paths import ROOT
from tests.support.serving import PATIENCE_S, Serving

LOOK_S = 0.02
MakeApp = Callable[[], App]


@dataclass(frozen=True)
class RunState:
    """How a run stands. `state` is running, done, failed, cancelled, ..."""

    state: str
    value: Any = None
    error: dict[str, str] | None = None
    reason: Any = None


class RunningNode(ABC):
    """One node over all its lives. Made by the fixture `start`; use it with `async with`."""

    @abstractmethod
    async def __aenter__(self) -> Self: ...

    @abstractmethod
    async def __aexit__(self, *error: Any) -> None: ...

    # -- what differs

    bus: Client  # of the node; in a simulation it lives on virtual time

    @abstractmethod
    async def until(self, condition: Callable[[], Any]) -> Any:
        """Wait until the condition (plain or async) is true; its value."""

    @abstractmethod
    async def restart(self, app: App | None = None) -> None:
        """Stop the node in order and start it again on what it stored, with another App if one is given."""

    @abstractmethod
    async def crash(self) -> None:
        """Kill the node and start it again on what it stored.

        A real node is killed only where the story gave `start` a function of its module that makes the App.
        """

    # -- commands and queries

    async def command(self, type: str, data: Any = None, **options: Any) -> Any:
        """Send a command; the reply's data, or the error it raises."""
        return await self.bus.command(type, data, **options)

    async def query(self, type: str, data: Any = None, **options: Any) -> Any:
        return await self.bus.query(type, data, **options)

    # -- topics

    async def publish(self, topic: str, payload: Any, **options: Any) -> int:
        """Publish an event (`key`, `headers`, `id`, `delay`, ...); its offset."""
        return await self.bus.publish(topic, payload, **options)

    async def publish_many(self, topic: str, payloads: Iterable[Any]) -> int:
        """Publish many events in order; how many."""
        return await self.bus.publish_many(topic, payloads)

    async def events(self, topic: str) -> list[Any]:
        """The payloads of a topic's events (at most a thousand per partition); none when it does not exist."""
        known = await self.query("Bus.Topics")
        partitions = next((each["partitions"] for each in known["topics"] if each["topic"] == topic), 0)
        pages = [
            await self.query("Bus.Read", {"topic": topic, "partition": partition, "offset": 1, "limit": 1_000})
            for partition in range(partitions)
        ]
        return [event["payload"] for page in pages for event in page["events"]]

    async def comes(self, topic: str, *payloads: Any) -> list[Any]:
        """Wait until the topic holds exactly these payloads, in any order; what it holds."""
        wanted = sorted(map(repr, payloads))

        async def is_there() -> list[Any]:
            held = await self.events(topic)
            return held if sorted(map(repr, held)) == wanted else []

        return list(await self.until(is_there))

    async def dead_letters(self, topic: str) -> list[dict[str, Any]]:
        """What groups gave up of a topic."""
        found = await self.query("Bus.DeadLetters", {"topic": topic})
        return list(found["letters"])

    async def redrive(self, topic: str, **choice: Any) -> int:
        """Deliver dead letters again; how many."""
        return int((await self.command("Bus.Redrive", {"topic": topic, **choice}))["count"])

    async def enqueue(self, task: Any, *args: Any, **named: Any) -> int:
        """Have a task of the App done, also by a node in another process."""
        return await self.publish(task.topic, task.payload(*args, **named))

    # -- runs

    async def start_run(self, program: Any, *args: Any, id: str | None = None) -> str:
        """Start a durable run, by function or by name; its id."""
        return (await self.bus.start_run(program, *args, id=id)).id

    async def signal(self, run_id: str, name: str, value: Any = None) -> bool:
        return await self.bus.signal(run_id, name, value)

    async def cancel(self, run_id: str, reason: Any = None) -> bool:
        return await self.bus.cancel(run_id, reason)

    async def run_state(self, run_id: str) -> RunState:
        """How a run stands now."""
        told = await self.query("Run.Outcome", {"id": run_id})
        return RunState(told["state"], told.get("value"), told.get("error"), told.get("reason"))

    async def outcome(self, run_id: str) -> RunState:
        """Wait until a run is over; how it ended."""

        async def ended() -> RunState | None:
            state = await self.run_state(run_id)
            return None if state.state in ("running", "blocked") else state

        found = await self.until(ended)
        assert isinstance(found, RunState)
        return found


class SimulatedNode(RunningNode):
    """On virtual time. `world` is the simulation's own face."""

    def __init__(self, program: App | MakeApp, settings: dict[str, Any]) -> None:
        self._simulation = simulate(program if isinstance(program, App) else program(), **settings)
        self.world: World

    async def __aenter__(self) -> Self:
        self.world = await self._simulation.__aenter__()
        self.bus = await self.world.client().__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.bus.close()
        await self._simulation.__aexit__(*error)

    async def until(self, condition: Callable[[], Any]) -> Any:
        return await self.world.until(condition, within="10m")

    async def restart(self, app: App | None = None) -> None:
        await self.world.restart(app=app)

    async def crash(self) -> None:
        await self.world.crash_and_restart()


class RealNode(RunningNode):
    """Behind sockets; `url` is its address."""

    url: str

    async def until(self, condition: Callable[[], Any]) -> Any:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = condition()
                if inspect.isawaitable(found):
                    found = await found
                if found:
                    return found
                await asyncio.sleep(LOOK_S)


class NodeInThisProcess(RealNode):
    """Booted by `serving`, so that the story sees the App's variables."""

    def __init__(self, app: App, folder: Path, settings: dict[str, Any]) -> None:
        self._app = app
        self._settings = {"engine": "sqlite", "data": str(folder / "data"), **settings}
        self._life = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self.url = (await self._life.enter_async_context(serving(self._app, **self._settings))).url
        self.bus = await self._life.enter_async_context(connect(self.url))
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self._life.aclose()

    async def restart(self, app: App | None = None) -> None:
        await self._life.aclose()
        self._app = app or self._app
        await self.__aenter__()

    async def crash(self) -> None:
        raise AssertionError(
            "a node in the test's process cannot be killed: give `start` a function that makes the App"
        )


class NodeProcess(RealNode):
    """A `mainspring serve` process of the App that a function of the test's module makes. It can be killed."""

    def __init__(self, program: MakeApp, folder: Path, settings: dict[str, Any]) -> None:
        lines = [f"from {program.__module__} import {program.__qualname__}", f"app = {program.__qualname__}()", ""]
        (folder / "story.py").write_text("\n".join(lines))
        chosen = [f"{name} = {json.dumps(value)}\n" for name, value in settings.items()]
        (folder / "mainspring.toml").write_text("".join(chosen))
        self._process = Serving("story:app", folder=folder, engine="sqlite", env={"PYTHONPATH": str(ROOT)})
        self._life = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._life.enter_context(self._process)
        await self._meet()
        return self

    async def _meet(self) -> None:
        self.url = f"ws://127.0.0.1:{self._process.port}"
        self.bus = await self._life.enter_async_context(connect(self.url))

    async def __aexit__(self, *_: Any) -> None:
        await self._life.aclose()

    async def restart(self, app: App | None = None) -> None:
        assert app is None, "a deploy is for stories that give `start` an App"
        await self.bus.close()
        self._process.signal(signal.SIGTERM)
        self._process.wait()
        await self._start_again()

    async def crash(self) -> None:
        self._process.kill()
        await self.bus.close()
        await self._start_again()

    async def _start_again(self) -> None:
        self._process.launch()
        assert self._process.boot.get("type") == "Sys.BootComplete", self._process.errors()
        await self._meet()


def running_node(kind: str, program: App | MakeApp, folder: Path, settings: dict[str, Any]) -> RunningNode:
    """`kind` is "simulated" or "served"."""
    if kind == "simulated":
        return SimulatedNode(program, settings)
    if isinstance(program, App):
        return NodeInThisProcess(program, folder, settings)
    return NodeProcess(program, folder, settings)
