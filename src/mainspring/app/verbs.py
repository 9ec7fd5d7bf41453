"""What a program can do besides declaring: the verbs of a client, in the process where the app is served.

They are those of `mainspring.client.NodeVerbs`, so code moves between the node's process and another one by the name in
front of them. `running` makes this process the node, or a client of the process that is.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, overload

from mainspring.client import NodeVerbs
from mainspring.errors import BootError
from mainspring.import_path import find_object
from mainspring.loop import blocking_verb, result_elsewhere
from mainspring.tasks import not_served

if TYPE_CHECKING:
    from mainspring.client import Place, RunInfo, StartedRun, StoredEvent
    from mainspring.durations import Duration
    from mainspring.runs import Outcome

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

NO_DATA: Final[Any] = object()  # `app.command(type)` declares, unless it is awaited; with data it asks


class Declaring:
    """What `app.command(type)` gives: a decorator, and something to await for a command that takes no data."""

    def __init__(self, decorate: Callable[[Any], Any], ask: Callable[[], Any]) -> None:
        self._decorate = decorate
        self._ask = ask

    def __call__(self, function: F) -> F:
        declared: F = self._decorate(function)
        return declared

    def __await__(self) -> Generator[Any, Any, Any]:
        answer: Generator[Any, Any, Any] = self._ask().__await__()
        return answer


def documented_by(verb: Callable[..., Any]) -> Callable[[F], F]:
    """Take the documentation from the verb of a client."""

    def decorate(method: F) -> F:
        method.__doc__ = verb.__doc__
        return method

    return decorate


class AppVerbs:
    """For `App`. In a plain `def` function they wait by themselves; on an event loop they are awaited."""

    name: str
    node: Callable[[], NodeVerbs] | None
    asgi_face: Callable[[Any, Any, Any], Awaitable[None]] | None = None

    @documented_by(NodeVerbs.publish)
    def publish(
        self,
        topic: str,
        payload: Any,
        *,
        key: str | None = None,
        headers: dict[str, str] | None = None,
        id: str | None = None,
        delay: Duration = 0,
        at: datetime | None = None,
        ttl: Duration = 0,
        expect: int | None = None,
        timeout: Duration | None = None,
    ) -> Coroutine[Any, Any, Place]:
        options = {"delay": delay, "at": at, "ttl": ttl, "expect": expect, "timeout": timeout}
        found: Coroutine[Any, Any, Place] = self.carry_out(
            "publish", topic, payload, key=key, headers=headers, id=id, **options
        )
        return found

    @overload
    def follow(
        self,
        topic: str,
        *,
        since: Literal["latest", "beginning"] | datetime | timedelta = "latest",
        type: builtins.type[T],
    ) -> AsyncIterator[StoredEvent[T]]: ...

    @overload
    def follow(
        self, topic: str, *, since: Literal["latest", "beginning"] | datetime | timedelta = "latest", type: Any = None
    ) -> AsyncIterator[StoredEvent[Any]]: ...

    @documented_by(NodeVerbs.follow)
    def follow(
        self, topic: str, *, since: Literal["latest", "beginning"] | datetime | timedelta = "latest", type: Any = None
    ) -> AsyncIterator[StoredEvent[Any]]:
        found: AsyncIterator[StoredEvent[Any]] = self.carry_out("follow", topic, since=since, type=type)
        return found

    @documented_by(NodeVerbs.signal)
    def signal(self, run: str | StartedRun[Any], name: str, value: Any = None) -> Coroutine[Any, Any, bool]:
        found: Coroutine[Any, Any, bool] = self.carry_out("signal", run, name, value)
        return found

    @documented_by(NodeVerbs.cancel)
    def cancel(self, run: str | StartedRun[Any], reason: Any = None) -> Coroutine[Any, Any, bool]:
        found: Coroutine[Any, Any, bool] = self.carry_out("cancel", run, reason)
        return found

    @documented_by(NodeVerbs.run_info)
    def run_info(self, run: str | StartedRun[Any]) -> Coroutine[Any, Any, RunInfo]:
        found: Coroutine[Any, Any, RunInfo] = self.carry_out("run_info", run)
        return found

    @overload
    def start_run(
        self, program: Callable[..., Coroutine[Any, Any, T]], /, *args: Any, id: str | None = None
    ) -> Coroutine[Any, Any, StartedRun[T]]: ...

    @overload
    def start_run(
        self, program: Callable[..., Generator[Any, Any, T]], /, *args: Any, id: str | None = None
    ) -> Coroutine[Any, Any, StartedRun[T]]: ...

    @overload
    def start_run(self, program: str, /, *args: Any, id: str | None = None) -> Coroutine[Any, Any, StartedRun[Any]]: ...

    @documented_by(NodeVerbs.start_run)
    def start_run(self, program: Any, /, *args: Any, id: str | None = None) -> Any:
        return self.carry_out("start_run", program, *args, id=id)

    @overload
    def outcome(
        self, run: str, program: Callable[..., Coroutine[Any, Any, T]], /, *, timeout: Duration | None = None
    ) -> Coroutine[Any, Any, Outcome[T]]: ...

    @overload
    def outcome(self, run: StartedRun[T], /, *, timeout: Duration | None = None) -> Coroutine[Any, Any, Outcome[T]]: ...

    @overload
    def outcome(self, run: str, /, *, timeout: Duration | None = None) -> Coroutine[Any, Any, Outcome[Any]]: ...

    @documented_by(NodeVerbs.outcome)
    def outcome(self, run: Any, program: Any = None, /, *, timeout: Duration | None = None) -> Any:
        return self.carry_out("outcome", run, program, timeout=timeout)

    @blocking_verb
    def carry_out(self, name: str, /, *arguments: Any, **named: Any) -> Any:
        """A verb by its name. Raises NotServed where no node and no client is."""
        if self.node is None:
            raise not_served(self.name)
        node = self.node()
        work = getattr(node, name)(*arguments, **named)
        return result_elsewhere(work, node.event_loop) if asyncio.iscoroutine(work) else work

    # Inside another program

    @asynccontextmanager
    async def running(
        self, *, engine: str | None = None, data: str | Path | None = None, port: int | None = None, **settings: Any
    ) -> AsyncIterator[None]:
        """Run the app's node in this process, on the running event loop: in a web server, a script, a notebook.

        `engine` is "memory", the address of a server, or "sqlite:DIRECTORY"; it opens no port and no socket unless
        `port` or other settings ask for one. What is not given comes from the environment and `mainspring.toml`.

        Of several processes with one data directory the first is the node. The others are its clients and have the
        same verbs; when it goes, one of them becomes the node.
        """
        if self.node is not None:
            raise BootError(f"the app {self.name!r} is running already", remedy="enter `app.running()` once")
        given = {"engine": engine, "data": None if data is None else str(data), "port": port, **settings}
        running: Any = find_object("mainspring.node:Running")  # a node knows its app, not the other way round
        here = running(self, given)
        await here.start()
        self.asgi_face = here.asgi
        try:
            yield
        finally:
            self.asgi_face = None
            await here.stop()

    @property
    def asgi(self) -> AsgiApplication:
        """The node's HTTP routes, WebSocket and dashboard as an ASGI application: `api.mount("/mainspring", app.asgi)`.

        It answers while the app is running. Served by itself (`uvicorn shop:app.asgi`) it runs the app, too.
        """
        return AsgiApplication(self)

    def serve_with(self, _: Any = None) -> AbstractAsyncContextManager[None]:
        """`FastAPI(lifespan=app.lifespan)`, or of any Starlette application: the app is running as long as that is."""
        return self.running()


class AsgiApplication:
    """`app.asgi`."""

    def __init__(self, app: AppVerbs) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._run(receive, send)
        elif self._app.asgi_face is None:
            raise not_served(self._app.name)
        else:
            await self._app.asgi_face(scope, receive, send)

    async def _run(self, receive: Any, send: Any) -> None:
        await receive()
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(self._app.running())
            except BootError as error:
                await send({"type": "lifespan.startup.failed", "message": str(error)})
                return
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})
