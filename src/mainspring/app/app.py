"""App: what a program declares. Decorators note; nothing runs until a node or a kernel reads the notes.

Handlers of messages, consumers of topics, schedules, programs of runs, answers to effects and enzymes of beats are all
declared here. Handlers that share the first segment of their type form one capability with one actor: `Stock.Reserve`
and `Stock.Count` take turns, `Order.Place` waits for neither. Declarations are plain data (`app.handlers`,
`app.consumers`, `app.programs`, ...), so that whoever boots the app can look before anything is started.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, Unpack, overload

from mainspring.app.declared import (
    Declared,
    DeclaredAnswer,
    DeclaredConsumer,
    DeclaredPages,
    DeclaredProgram,
    DeclaredSchedule,
    DeclaredSchema,
    DeclaredSchemas,
    DeclaredTopic,
    DeclaredUpcaster,
    Hooks,
    Lifespan,
    answer_from,
    check_hook,
    check_number,
    check_restart,
    check_types,
    checked_retries,
    consumer_from,
    hints_of,
    place_of,
    program_from,
    refuse_bare,
    schedule_from,
)
from mainspring.app.dependencies import Dependencies, Provider
from mainspring.app.event import Event
from mainspring.app.middleware import Middleware, MiddlewareStack
from mainspring.app.verbs import NO_DATA, AppVerbs, Declaring
from mainspring.beats import BeatsProgram, TargetOf
from mainspring.builtin import kernel_capabilities
from mainspring.bus import LATEST, Checker, Compatibility, Overlap, Start, TopicConfig, check_name
from mainspring.codec import Codec, Encoding, encoding_of
from mainspring.durations import Duration, duration_ms
from mainspring.kernel import (
    Capability,
    CapabilityError,
    Context,
    Handler,
    Isolation,
    Kernel,
    RestartPolicy,
    Retry,
    handler_from,
)
from mainspring.loop import runs_in_thread
from mainspring.retries import Errors, RetryOptions
from mainspring.runs import Effect, EffectContext, Runtime
from mainspring.tasks import Task, TaskContext, TaskRegistry, starts_per_second

if TYPE_CHECKING:
    from mainspring.client import Client, NodeVerbs, SyncClient

TASK_RETRIES: RetryOptions = {"max_attempts": 5, "backoff": "1s", "max_backoff": "5m"}

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=Middleware)
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


@dataclass
class App(AppVerbs):
    """A named program.

    Its commands and queries run concurrently: `concurrency` messages of a capability at a time; 1 makes the handlers of
    a capability take one at a time, in order. An exception in a handler is an error for its caller, and nothing else.
    With `restart` the handlers are supervised: after too many faults in a while their capability is given up, until
    somebody starts it again. It is also the policy of low-level capabilities and processes, which always are.

    With a `codec`, everything the program stores and sends is encoded before it leaves the program: payloads, data of
    messages, arguments and journals of runs, tasks and their results. Who has no codec sees that it is.

    `state` is for what handlers share (a database, a client): set it in a start function or in the lifespan, an
    async context manager around the life of the node that gets the app.
    """

    name: str
    restart: RestartPolicy | None = None
    concurrency: int = 100
    checker: Checker | None = None  # asked who may use a topic: (topic, action, {agent, scopes}) -> bool
    lifespan: Lifespan | None = field(default=None, repr=False)  # once made: what a web framework takes
    codec: Codec | None = field(default=None, repr=False)  # encodes what the program stores and sends
    state: SimpleNamespace = field(default_factory=SimpleNamespace, repr=False)
    handlers: list[Declared] = field(default_factory=list, repr=False)
    low_level: list[Capability] = field(default_factory=list, repr=False)
    order: list[str] = field(default_factory=list, repr=False)  # capability ids as they were first mentioned
    programs: list[DeclaredProgram] = field(default_factory=list, repr=False)
    answers: list[DeclaredAnswer] = field(default_factory=list, repr=False)
    beats: BeatsProgram = field(default_factory=BeatsProgram, repr=False)
    consumers: list[DeclaredConsumer] = field(default_factory=list, repr=False)
    schedules: list[DeclaredSchedule] = field(default_factory=list, repr=False)
    topics: list[DeclaredTopic] = field(default_factory=list, repr=False)
    folders: list[DeclaredPages] = field(default_factory=list, repr=False)
    payloads: DeclaredSchemas = field(default_factory=DeclaredSchemas, repr=False)
    hooks: Hooks = field(default_factory=Hooks, repr=False)
    middlewares: MiddlewareStack = field(default_factory=MiddlewareStack, repr=False)
    dependencies: Dependencies = field(default_factory=Dependencies, repr=False)
    replaced_steps: dict[str, Callable[..., Any]] = field(default_factory=dict, repr=False)
    tasks: TaskRegistry = field(init=False, repr=False)
    encoding: Encoding | None = field(init=False, repr=False)
    node: Callable[[], NodeVerbs] | None = field(default=None, repr=False)  # how verbs are carried out, while served

    def __post_init__(self) -> None:
        check_name("program", self.name)  # it is in the names of groups and topics
        check_number(f"the concurrency of app {self.name!r}", self.concurrency)
        check_restart(f"app {self.name!r}", self.restart)
        if self.lifespan is not None and not callable(self.lifespan):
            raise CapabilityError(f"the lifespan of app {self.name!r} is a function, not {self.lifespan!r}")
        self.encoding = encoding_of(self.codec)
        self.tasks = TaskRegistry(self.name, self.encoding)
        self.tasks.bind = lambda task: self.dependencies.bind(task.function, "task", task.name, TaskContext)
        self.hooks.lifespan = self.lifespan
        self.lifespan = self.serve_with

    @overload
    def command(
        self,
        type: str,
        *,
        description: str = "",
        durable: bool | None = None,
        isolation: Isolation | None = None,
        memory_mb: int | None = None,
        concurrency: int | None = None,
        key: str | Callable[[Any], Any] | None = None,
        restart: RestartPolicy | None = None,
        id: str | None = None,
        timeout: Duration | None = None,
        retry: Retry | None = None,
        reply: Any = None,
    ) -> Declaring: ...

    @overload
    def command(
        self,
        type: str,
        data: Any,
        *,
        id: str | None = None,
        timeout: Duration | None = None,
        retry: Retry | None = None,
        reply: builtins.type[T],
    ) -> Coroutine[Any, Any, T]: ...

    @overload
    def command(
        self,
        type: str,
        data: Any,
        *,
        id: str | None = None,
        timeout: Duration | None = None,
        retry: Retry | None = None,
        reply: Any = None,
    ) -> Coroutine[Any, Any, Any]: ...

    def command(
        self,
        type: str,
        data: Any = NO_DATA,
        *,
        description: str = "",
        durable: bool | None = None,
        isolation: Isolation | None = None,
        memory_mb: int | None = None,
        concurrency: int | None = None,
        key: str | Callable[[Any], Any] | None = None,
        restart: RestartPolicy | None = None,
        id: str | None = None,
        timeout: Duration | None = None,
        retry: Retry | None = None,
        reply: Any = None,
    ) -> Any:
        """Handle a command: `(data, ctx)`; what the function returns is the reply's data.

        A plain `def` runs in a thread; what an `async def` awaits (`ctx.send`, `ctx.publish`) blocks there. An
        exception is error 500 for the caller, `Fail` the error it names.

        The handlers of a capability (those with the same first segment) share `App.concurrency`. `concurrency` gives
        this handler a number of its own; 1 means one at a time, in order. With `key`, a field of the data or a function
        of it, messages of the capability that have the same key are handled one at a time, in order.

        `durable`, `isolation`, `memory_mb` and `restart` are about the whole capability; say them on one handler.

        Where the app is served, `await app.command("Order.Place", {...})` sends a command, as `Client.command` does;
        `id`, `timeout`, `retry` and `reply` belong to that.
        """
        if data is not NO_DATA:
            return self.carry_out("command", type, data, id=id, timeout=timeout, retry=retry, reply=reply)
        options = {"description": description, "concurrency": concurrency, "key": key}
        said = {"durable": durable, "isolation": isolation, "memory_mb": memory_mb, "restart": restart}
        asked = {"id": id, "timeout": timeout, "retry": retry, "reply": reply}
        return self._declare("command", type, options, said, asked)

    @overload
    def query(
        self,
        type: str,
        *,
        description: str = "",
        isolation: Isolation | None = None,
        memory_mb: int | None = None,
        concurrency: int | None = None,
        key: str | Callable[[Any], Any] | None = None,
        restart: RestartPolicy | None = None,
        timeout: Duration | None = None,
        retry: Retry | None = None,
        reply: Any = None,
    ) -> Declaring: ...

    @overload
    def query(
        self,
        type: str,
        data: Any,
        *,
        timeout: Duration | None = None,
        retry: Retry | None = None,
        reply: builtins.type[T],
    ) -> Coroutine[Any, Any, T]: ...

    @overload
    def query(
        self,
        type: str,
        data: Any,
        *,
        timeout: Duration | None = None,
        retry: Retry | None = None,
        reply: Any = None,
    ) -> Coroutine[Any, Any, Any]: ...

    def query(
        self,
        type: str,
        data: Any = NO_DATA,
        *,
        description: str = "",
        isolation: Isolation | None = None,
        memory_mb: int | None = None,
        concurrency: int | None = None,
        key: str | Callable[[Any], Any] | None = None,
        restart: RestartPolicy | None = None,
        timeout: Duration | None = None,
        retry: Retry | None = None,
        reply: Any = None,
    ) -> Any:
        """Handle a query: like a command, but nothing changes by asking. `await app.query(type, data)` asks."""
        if data is not NO_DATA:
            return self.carry_out("query", type, data, timeout=timeout, retry=retry, reply=reply)
        options = {"description": description, "concurrency": concurrency, "key": key}
        said = {"isolation": isolation, "memory_mb": memory_mb, "restart": restart}
        return self._declare("query", type, options, said, {"timeout": timeout, "retry": retry, "reply": reply})

    def on(
        self,
        type: str,
        *,
        isolation: Isolation | None = None,
        concurrency: int | None = None,
        key: str | Callable[[Any], Any] | None = None,
        everywhere: bool = False,
        restart: RestartPolicy | None = None,
    ) -> Declaring:
        """Hear an event; nobody waits for what the function returns. One at a time, in order, unless told otherwise.

        Where several nodes share a log, an event is heard on the node where it happened. With `everywhere` it is also
        heard on this one, at most once: a node that is not there misses it.
        """
        options = {"concurrency": concurrency, "key": key, "everywhere": everywhere}
        return self._declare("event", type, options, {"isolation": isolation, "restart": restart})

    def capability(
        self,
        *,
        id: str,
        description: str,
        inbound: Any,
        outbound: Any,
        subscribes: Sequence[str] = (),
        spawn: Callable[[], Any],
        durable: bool = False,
        isolation: Isolation = "task",
        memory_mb: int | None = None,
        restart: RestartPolicy | None = None,
    ) -> None:
        """The low-level form: schemas of whole messages, and a `spawn` that gives a new Worker-shaped actor."""
        self.low_level.append(
            Capability(
                id=id,
                description=description,
                inbound=inbound,
                outbound=outbound,
                subscribes=subscribes,
                spawn=spawn,
                durable=durable,
                isolation=isolation,
                memory_mb=memory_mb,
                restart=restart or self.restart,
            )
        )
        self.order.append(id)

    # Topics and schedules

    def topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        retention: Duration | None = None,
        retention_bytes: int | None = None,
        retention_count: int | None = None,
        max_attempts: int | None = None,
        ack_timeout: Duration | None = None,
        compact: bool | None = None,
    ) -> None:
        """Say what a topic shall be like from boot on. What is not said stays as it is; partitions only grow."""
        given = {
            "partitions": partitions,
            "retention_ms": None if retention is None else duration_ms(retention),
            "retention_bytes": retention_bytes,
            "retention_count": retention_count,
            "max_attempts": max_attempts,
            "ack_timeout_ms": None if ack_timeout is None else duration_ms(ack_timeout),
            "compact": compact,
        }
        declared = DeclaredTopic(name, {key: value for key, value in given.items() if value is not None})
        declared.over(TopicConfig(topic=name))  # a setting that cannot be is refused where it is said
        self.topics.append(declared)

    def consumer(
        self,
        topic: str,
        *,
        group: str | None = None,
        from_: Literal["beginning", "latest"] | int = "beginning",
        concurrency: int = 1,
        key_concurrency: int | None = None,
        group_concurrency: int | None = None,
        max_inflight: int | None = None,
        rate: str | None = None,
        batch: int | None = None,
        wait: Duration | None = None,
        transaction: bool = False,
        **retries: Unpack[RetryOptions],
    ) -> Callable[[F], F]:
        """Consume a topic: `(event: Event[T])`, called for each event, `concurrency` of them at a time.

        Returning acknowledges; raising refuses with the error's text, and the event comes again as `RetryOptions` says
        (`backoff="200ms"`, `max_backoff="1m"`, `max_attempts`, `retry_on`, `give_up_on`, `timeout`), until it is a dead
        letter. `raise Reject("why")` makes it one at once. Each group gets every event of the topic; `group` is the
        names of app and function (`shop.bill`) unless given. `from_` says where a new group starts: at the beginning,
        behind the latest event, or at an offset. `max_inflight` events are held at a time.

        With `batch` the function gets a list of up to so many events, as many as there are after `wait`. Returning
        acknowledges all of them but those that were refused one by one (`event.nack`, `event.reject`).

        `rate` ("100/s", "30/m") limits how many events this node begins with. Of events with the same key at most
        `key_concurrency` are handled at a time; 1 keeps their order, also when one of them fails. All members of the
        group, on all nodes, handle at most `group_concurrency` events at a time.

        With `transaction`, where the log is in PostgreSQL, `event.connection` is a connection (of asyncpg) inside a
        transaction: what the function does on it, the acknowledgement and what it publishes are one commit.
        """
        refuse_bare("@app.consumer", topic, '"orders"')
        names = sys._getframe(1).f_locals
        numbers = {
            "max_inflight": max_inflight,
            "batch": batch,
            "key_concurrency": key_concurrency,
            "group_concurrency": group_concurrency,
        }

        def decorate(function: F) -> F:
            others = self.dependencies.declare(function, (None,), names, f"the consumer of {topic!r}")
            declared = consumer_from(
                topic,
                function,
                app=self.name,
                group=group,
                from_=_start(from_),
                concurrency=concurrency,
                numbers=numbers,
                rate=rate,
                wait=wait,
                transaction=transaction,
                retries=retries,
                local_names=names,
                others=others,
            )
            self.consumers.append(declared)
            return function

        return decorate

    def every(
        self,
        interval: Duration,
        *,
        name: str | None = None,
        jitter: Duration = 0,
        overlap: Overlap = "queue",
        **retries: Unpack[RetryOptions],
    ) -> Callable[[F], F]:
        """Call a function again and again: "5m", "1h30m". The first time is one interval after it was first served.

        The next time is kept in the log. A restart neither loses nor doubles a call; times that passed while nothing
        ran are made up once. A call that fails is tried again as `RetryOptions` says. The function takes nothing, or
        the `Event` of its firing: what it publishes through that is stored in one commit with the call being done.

        `overlap` says what happens when its time comes and the call before is not finished: "queue" calls it after
        that one, "skip" does not call it, "allow" calls it at once. Each call is late by up to `jitter`, by the same
        for one schedule and time.
        """
        refuse_bare("@app.every", interval, '"5m"')
        return self._schedule({"every": duration_ms(interval)}, name, jitter, overlap, retries)

    def cron(
        self,
        line: str,
        *,
        timezone: str | None = None,
        name: str | None = None,
        jitter: Duration = 0,
        overlap: Overlap = "queue",
        **retries: Unpack[RetryOptions],
    ) -> Callable[[F], F]:
        """Call a function when a cron line says so: minute, hour, day of month, month, day of week.

        In UTC, or in `timezone` ("Europe/Berlin"). There a fixed time that the clocks skip is called at the end of the
        gap, and one that they show twice is called the first time. Otherwise as for `every`.
        """
        refuse_bare("@app.cron", line, '"0 3 * * *"')
        times = {"cron": line, **({} if timezone is None else {"timezone": timezone})}
        return self._schedule(times, name, jitter, overlap, retries)

    def _schedule(
        self, times: dict[str, Any], name: str | None, jitter: Duration, overlap: Overlap, retries: RetryOptions
    ) -> Callable[[F], F]:
        if jitter_ms := duration_ms(jitter):
            times["jitter"] = jitter_ms
        names = sys._getframe(2).f_locals

        def decorate(function: F) -> F:
            known = name or function.__name__
            others = self.dependencies.declare(function, (Event,), names, f"the schedule {known!r}")
            declared = schedule_from(function, times=times, name=known, overlap=overlap, retries=retries, others=others)
            self.schedules.append(declared)
            return function

        return decorate

    # Payloads

    def schema(self, topic: str, *, compatibility: Compatibility | None = None) -> Callable[[T], T]:
        """Register a type (or a JSON Schema: `app.schema("orders")({...})`) for the payloads of a topic at boot.

        A type that changed becomes the next version, if it is compatible: `backward` unless the topic or
        `compatibility` says otherwise.
        """

        frame = sys._getframe(1)
        place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        check_name("topic", topic)

        def decorate(given: T) -> T:
            if not isinstance(given, dict | bool):
                check_types(f"the schema of {topic!r}", {"the payload": given})
            self.payloads.schemas.append(DeclaredSchema(topic, given, compatibility, place))
            return given

        return decorate

    def upcaster(self, topic: str, version: int) -> Callable[[F], F]:
        """Raise old events when they are read: the function gets a payload of `version`, gives one of the next."""

        def decorate(step: F) -> F:
            self.payloads.upcasters.append(DeclaredUpcaster(topic, version, step))
            return step

        return decorate

    # Tasks

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...

    @overload
    def task(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        concurrency: int | None = None,
        rate: str | None = None,
        keep_result: bool = True,
        topic: str | None = None,
        group: str | None = None,
        **retries: Unpack[RetryOptions],
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...

    def task(
        self,
        function: Any = None,
        /,
        *,
        name: str | None = None,
        concurrency: int | None = None,
        rate: str | None = None,
        keep_result: bool = True,
        topic: str | None = None,
        group: str | None = None,
        **retries: Unpack[RetryOptions],
    ) -> Any:
        """Declare a function that is called later, at least once: `await send_mail.enqueue("ada")`.

        It is called in the node, or unchanged in `mainspring worker` processes. Its arguments are JSON or have declared
        types; a parameter with the type hint `TaskContext` is given what the task knows about itself. A call that fails
        is tried again as `RetryOptions` says, with 5 attempts, a `backoff` of 1 s and a `max_backoff` of 5 minutes
        unless given. In each process at most `concurrency` calls run at a time, and they start no faster than `rate`
        ("100/s", "30/m"). What it returns is kept for a day, unless `keep_result` is False. Its calls are events of
        `tasks.<app>.<name>` for the group `<app>`, unless `topic` and `group` say otherwise.
        """
        names = sys._getframe(1).f_locals
        check_number("the concurrency of a task", concurrency)

        def decorate(function: Callable[P, R]) -> Task[P, R]:
            known = name or function.__name__
            hints = hints_of(function, f"the task {known!r}", names)
            declared = Task(
                self.tasks,
                function,
                known,
                hints=hints,
                others=self.dependencies.declare_call(function, hints, names),
                topic=topic,
                group=group,
                retries=checked_retries(f"the task {known!r}", {**TASK_RETRIES, **retries}),
                keep_result=keep_result,
                concurrency=concurrency,
                rate=starts_per_second(rate),
            )
            self.tasks.add(declared)
            return declared

        return decorate if function is None else decorate(function)

    def use(self, client: Client | SyncClient) -> None:
        """Have the app's verbs and its tasks carried out by this client's node: in a script, wherever no node is.

        Given a `SyncClient`, `enqueue` and the verbs of its handle wait for their results; the other verbs are its own.
        """
        from mainspring.client import NodeVerbs

        self.tasks.use_client(client)
        self.node = (lambda: client) if isinstance(client, NodeVerbs) else None

    def pages(self, path: str, folder: str | Path, *, policy: str | None = None) -> None:
        """Serve the files of a folder to browsers, below `path` of the node's port; `index.html` for the folder itself.

        Such a page is of the node's own origin: it imports `/client.js` and may connect. Everybody who can reach the
        port may load the files. `policy` replaces the strict Content-Security-Policy they come with.
        """
        self.folders.append(DeclaredPages(path, Path(folder), policy))

    # Around handlers

    def middleware(self, function: M) -> M:
        """Call this async function around every call of a handler: `(call, next)`; it awaits `next(call)`.

        It sees what was given and what is returned or raised, of commands, queries, kernel events, consumers,
        schedules, tasks, effects and steps, each attempt. The first declared is the outermost. Handlers in processes of
        their own (`isolation="process"`) have none around them.
        """
        self.middlewares.add(function)
        self.tasks.around = self.middlewares.call
        return function

    def surrounded(self, consumers: Iterable[DeclaredConsumer]) -> list[DeclaredConsumer]:
        """These consumers with the middleware around them, and with their dependencies."""
        bound = map(self._bound_consumer, consumers)
        return [replace(each, around=self.middlewares.call) if self.middlewares else each for each in bound]

    def _bound_consumer(self, declared: DeclaredConsumer) -> DeclaredConsumer:
        gives = None if declared.batch else Event
        kind: Literal["consumer", "schedule"] = "schedule" if declared.schedule else "consumer"
        name = declared.schedule.rpartition("/")[2] or declared.group
        function = self.dependencies.bind(declared.function, kind, name, gives)
        return declared if function is declared.function else replace(declared, function=function, takes_event=True)

    # Dependencies

    def provide(self, type: Any, provider: Provider) -> None:
        """Give every parameter with this type hint what the provider makes: `app.provide(Session, get_session)`.

        Parameters of handlers of every kind besides those they always have, of steps, hooks and other providers. A
        provider is called once per call of a handler; `Depends` says what it may be.
        """
        self.dependencies.provide(type, provider)
        for task in self.tasks:
            task.leave_out(self.dependencies.declare_call(task.function, task.hints, {}))

    def override(self, provider: Any, by: Provider) -> AbstractContextManager[None]:
        """Ask another provider in place of this one (or of the one of this type) inside a `with` block: for tests."""
        return self.dependencies.override(provider, by)

    # Starting and stopping

    def on_start(self, function: F) -> F:
        """Call this when the node starts, before anything is handled; it may take the app."""
        where, names = f"the hook {place_of(function)}", sys._getframe(1).f_locals
        check_hook(function, self.dependencies.declare(function, (App,), names, where))
        self.hooks.on_start.append(function)
        return function

    def on_stop(self, function: F) -> F:
        """Call this when the node has finished everything; it may take the app."""
        where, names = f"the hook {place_of(function)}", sys._getframe(1).f_locals
        check_hook(function, self.dependencies.declare(function, (App,), names, where))
        self.hooks.on_stop.append(function)
        return function

    # Runs

    @overload
    def run(self, program: F) -> F: ...

    @overload
    def run(self, *, name: str) -> Callable[[F], F]: ...

    def run(self, program: Any = None, *, name: str | None = None) -> Any:
        """Declare a program for durable runs, known by its function's name or the one given.

        `Run.Start`, `mainspring runs start` and `Spawn` start it by that name; after a crash it goes on where it was.
        """

        def decorate(function: F) -> F:
            self.programs.append(program_from(function, name, self.programs))
            if name is not None:
                function.__run_name__ = name  # type: ignore[attr-defined] # how a client knows it
            return function

        return decorate if program is None else decorate(program)

    def handles(
        self,
        effect: type[Effect[Any]],
        *,
        strict: bool = False,
        timeout: Duration | None = None,
        max_attempts: int = 1,
        backoff: Duration = "1s",
        max_backoff: Duration = "1m",
        retry_on: Errors = Exception,
        give_up_on: Errors = (),
    ) -> Callable[[F], F]:
        """Answer an effect: `(effect, ctx)`; what the function returns is what the program goes on with.

        A function that raises is called again, up to `max_attempts` times, after `backoff`, which doubles up to
        `max_backoff`; `timeout` is for one attempt. Only errors of `retry_on` are tried again, and none of
        `give_up_on`. Then the program gets `EffectFailed`. A plain `def` function runs in a thread.
        """
        refuse_bare("@app.handles", effect, "Charge")
        names = sys._getframe(1).f_locals

        def decorate(function: F) -> F:
            where = f"@app.handles({getattr(effect, '__name__', effect)}) ({place_of(function)})"
            declared = answer_from(
                effect,
                function,
                self.dependencies.declare(function, (None, EffectContext), names, where),
                strict=strict,
                timeout=timeout,
                max_attempts=max_attempts,
                backoff=backoff,
                max_backoff=max_backoff,
                retry_on=retry_on,
                give_up_on=give_up_on,
            )
            self.answers.append(declared)
            return function

        return decorate

    @contextmanager
    def replace_step(self, step: Callable[..., Any] | str, by: Callable[..., Any]) -> Iterator[None]:
        """Have another function called in place of a step, in every node and simulation of this app: for tests."""
        name = step if isinstance(step, str) else step.__name__
        before = dict(self.replaced_steps)
        self.replaced_steps[name] = self.dependencies.bind_step(by)
        try:
            yield
        finally:
            self.replaced_steps.clear()
            self.replaced_steps.update(before)

    def install_runs(self, runtime: Runtime) -> None:
        """Make the declared programs and handlers known to a runtime."""
        around = self.middlewares.call if self.middlewares else None
        for answer in self.answers:
            function = self.dependencies.bind(answer.function, "effect", answer.effect.__name__, EffectContext)
            threaded = runs_in_thread(function)
            runtime.handle(answer.effect, function, in_thread=threaded, around=around, **answer.options)
        runtime.programs.bind_step = self.dependencies.bind_step
        if around is not None:
            runtime.surround_steps(around)
        for program in self.programs:
            runtime.register(program.function, program.name or program.function.__name__)
        runtime.replace_steps(self.replaced_steps)

    # Beats

    def enzyme(
        self,
        query: str,
        *,
        name: str | None = None,
        match: str = "exact",
        before: Sequence[str] = (),
        after: Sequence[str] = (),
        flags: Sequence[str] = (),
    ) -> Callable[[F], F]:
        """Declare an enzyme: `(signal, target, stage)`, called in every beat with a signal that fits the query.

        `flags` ("emits", "idempotent", "stateful") say what it does, for those who read it.
        """
        refuse_bare("@app.enzyme", query, '"/orders"')
        return self.beats.enzyme(query, name=name, match=match, before=before, after=after, flags=flags)

    def bind(self, path: str, name: str, propagate: bool = True) -> None:
        """Let an enzyme act on a target path, and below it unless `propagate` is False."""
        self.beats.bind(path, name, propagate)

    def unbind(self, path: str, name: str) -> None:
        """End a binding at this path and below it."""
        self.beats.unbind(path, name)

    def beats_from(self, topic: str, *, target: TargetOf | None = None) -> None:
        """Make each event of a topic one signal, exactly once: its position is stored with the beat."""
        check_name("topic", topic)
        self.beats.beats_from(topic, target=target)

    # What is declared, put together

    def capabilities(self, reserved: set[str] | frozenset[str] = frozenset()) -> list[Capability]:
        """Everything declared, as capabilities, in the order they were first mentioned.

        `reserved` are the ids the node already has. Commands and queries cannot join those; event handlers can hear
        what they say, in a capability of their own.
        """
        segments: dict[str, list[Declared]] = {}
        for declared in self.handlers:
            segments.setdefault(declared.handler.type.partition(".")[0], []).append(declared)
        for capability in self.low_level:
            if capability.id in reserved:
                raise CapabilityError(f"capability {capability.id!r} is built in", remedy="choose another id")
        found = [self._join(name, declared, reserved) for name, declared in segments.items()]
        return sorted([*found, *self.low_level], key=lambda capability: self._position(capability))

    def _position(self, capability: Capability) -> int:
        name = capability.id.removeprefix(f"{self.name}.")
        return self.order.index(capability.id if capability.id in self.order else name)

    def _join(self, name: str, declared: list[Declared], reserved: set[str] | frozenset[str]) -> Capability:
        isolation: Isolation = _agreed(name, "isolation", declared) or "task"
        concurrency = self.concurrency if isolation == "task" else 1
        bound = [self.bound(each.handler) for each in declared]
        handlers = [_in_order(each) if concurrency > 1 else each for each in bound]
        if self.middlewares and isolation == "task":
            handlers = [replace(handler, around=self.middlewares.call) for handler in handlers]
        if self.encoding is not None:
            handlers = [replace(handler, encoding=self.encoding) for handler in handlers]
        answers = [handler for handler in handlers if handler.kind != "event"]
        taken = name in reserved or any(capability.id == name for capability in self.low_level)
        if taken and answers:
            raise CapabilityError(
                f"{answers[0].kind} {answers[0].type} ({place_of(answers[0].function)}): "
                f"the first segment {name!r} belongs to another capability",
                remedy="use a first segment of your own",
            )
        return Capability(
            id=f"{self.name}.{name}" if taken else name,
            description=f"Handlers of {name} in {self.name}.",
            subscribes=list(dict.fromkeys(handler.type for handler in handlers if handler.kind == "event")),
            handlers=handlers,
            durable=bool(_agreed(name, "durable", declared)),
            isolation=isolation,
            memory_mb=_agreed(name, "memory_mb", declared),
            restart=_agreed(name, "restart", declared) or self.restart,
            concurrency=concurrency,
        )

    def bound(self, handler: Handler) -> Handler:
        """This handler with its dependencies. Raises CapabilityError when nobody provides one."""
        function = self.dependencies.bind(handler.function, handler.kind, handler.type, Context)
        if function is handler.function:
            return handler
        return replace(handler, function=function, in_thread=runs_in_thread(function))

    def kernel(self, **options: Any) -> Kernel:
        """A kernel with the built-in capabilities and this app, for programs without a node: `async with`."""
        options.setdefault("restart", self.restart)
        kernel = Kernel(**options)
        kernel.register(*kernel_capabilities(kernel))
        kernel.register(*self.capabilities(kernel.ids_taken))
        return kernel

    def _declare(
        self,
        kind: Literal["command", "query", "event"],
        type: str,
        options: dict[str, Any],
        said: dict[str, Any],
        asked: dict[str, Any] | None = None,
    ) -> Declaring:
        """`options` are the handler's own, `said` is about its capability, `asked` is of who awaits it instead."""
        refuse_bare(f"@app.{'on' if kind == 'event' else kind}", type, '"Stock.Reserve"')
        names = sys._getframe(2).f_locals

        def decorate(function: F) -> F:
            others = self.dependencies.declare(function, (None, Context), names, f"the handler of {kind} {type}")
            check_number(f"the handler of {kind} {type}: concurrency", options.get("concurrency"))
            check_restart(f"the handler of {kind} {type}", said.get("restart"))
            handler = handler_from(kind, type, function, local_names=names, may_block=True, others=others, **options)
            check_types(f"the handler of {kind} {type}", {"the data": handler.input, "the reply": handler.output})
            self.handlers.append(Declared(handler, **said))
            self.order.append(type.partition(".")[0])
            return function

        return Declaring(decorate, lambda: self.carry_out(kind, type, **asked or {}))


def _start(given: str | int) -> Start | None:
    if isinstance(given, int):
        return Start("offset", given)
    if given not in ("beginning", "latest"):
        raise CapabilityError(f'from_ is "beginning", "latest" or an offset, not {given!r}')
    return LATEST if given == "latest" else None


def _in_order(handler: Handler) -> Handler:
    """Events are facts in their order: who hears them gets one after the other, unless the program says otherwise."""
    if handler.kind == "event" and handler.concurrency is None and handler.key is None:
        return replace(handler, concurrency=1)
    return handler


def _agreed(name: str, what: str, declared: list[Declared]) -> Any:
    """What the handlers of one capability say about it; they share an actor, so they must not disagree."""
    told = [(value, each) for each in declared if (value := getattr(each, what)) is not None]
    for value, each in told[1:]:
        first, one = told[0]
        if value != first:
            raise CapabilityError(
                f"the handlers of {name!r} disagree about {what}: {first!r} at {place_of(one.handler.function)}, "
                f"{value!r} at {place_of(each.handler.function)}",
                remedy="they share one actor: say it once",
            )
    return told[0][0] if told else None
