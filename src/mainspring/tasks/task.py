"""A declared task: a function of the program that is called later, at least once, in the node or in a worker.

Its arguments are JSON or have declared types. A parameter whose type hint is `TaskContext` is not an argument: it gets
what the task knows about itself. A plain function runs in a thread, an `async def` one on the event loop.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Never, NoReturn, ParamSpec, TypedDict, TypeVar, Unpack, overload

import msgspec

from mainspring.codec import Encoding
from mainspring.data_types import USABLE, decoder_of, json_encoder
from mainspring.durations import Duration, duration_ms
from mainspring.errors import MainspringError
from mainspring.loop import HandlerThreads, blocking_verb, runs_in_thread
from mainspring.retries import Backoff, Retries, retries_of
from mainspring.task_topics import EXPIRES, NAME, PRIORITIES, RESERVED, RETRY, TIMEOUT, NewCall, Priority, TaskTopics
from mainspring.tasks.errors import not_served
from mainspring.tasks.results import BlockingTaskHandle, BlockingTaskHandles, TaskHandle, TaskRecords

if TYPE_CHECKING:
    from mainspring.client import Client, SyncClient
    from mainspring.runs import Perform
    from mainspring.tasks.ports import TaskPort

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
T = TypeVar("T")

CELERY: Final = {"delay": "enqueue(...)", "apply_async": 'options(delay="1m").enqueue(...)'}


class BadTask(MainspringError, code="bad_task"):
    """A task, or a call of it, that cannot be."""


class BadArguments(MainspringError, code="bad_arguments"):
    """The stored arguments do not fit the function."""


class _Payload(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """The payload of a task's event."""

    args: list[msgspec.Raw] = []
    kwargs: dict[str, msgspec.Raw] = {}


_decode_call: Final = msgspec.json.Decoder(_Payload).decode
_decode_any: Final = msgspec.json.Decoder().decode
_encode: Final = json_encoder().encode


def retries_header(retries: Retries) -> str:
    """As it travels with a call that was given its own: attempts, first pause, factor, longest pause, jitter."""
    backoff = retries.backoff
    return f"{retries.max_attempts} {backoff.first_ms / 1000:g} 2 {backoff.longest_ms / 1000:g} 0.5"


def retries_from(header: str | None, declared: Retries) -> Retries:
    """Those of a call; a header that makes no sense counts as none."""
    if not header:
        return declared
    try:
        attempts, first, _, longest, _ = header.split(" ")
        backoff = Backoff(duration_ms(float(first)), duration_ms(float(longest)))
        return replace(declared, max_attempts=max(1, int(attempts)), backoff=backoff)
    except (ValueError, MainspringError):
        return declared


class TaskContext:
    """What a task knows about itself: given to the parameter with this type hint."""

    __slots__ = ("_report", "attempt", "cancelled", "enqueued_ms", "headers", "id", "key", "name")

    def __init__(
        self,
        id: str,
        name: str,
        attempt: int,
        key: str | None,
        headers: Mapping[str, str],
        enqueued_ms: int,
        report: Callable[[TaskContext, Any], None],
    ) -> None:
        self.id: str = id
        self.name: str = name
        self.attempt: int = attempt  # 1 the first time
        self.key: str | None = key
        self.headers: Mapping[str, str] = headers
        self.enqueued_ms: int = enqueued_ms  # epoch ms
        self.cancelled: bool = False  # for functions that run in a thread: nothing else can interrupt them
        self._report = report

    @classmethod
    def current(cls) -> TaskContext:
        """That of the task that runs now, for code that it calls. Raises LookupError outside a task."""
        return running_task.get()

    def progress(self, value: Any) -> None:
        """Report progress: any JSON, for instance `{"done": 3, "of": 10}`. Works from a thread, too."""
        self._report(self, value)


running_task: ContextVar[TaskContext] = ContextVar("mainspring task that runs now")


class TaskParameters:
    """The parameters of a function, and how stored arguments become theirs."""

    def __init__(
        self, function: Callable[..., Any], name: str, hints: Mapping[str, Any], others: Collection[str] = ()
    ) -> None:
        """`others` are parameters that are no arguments, because somebody else gives them."""
        self._name = name
        whole = inspect.signature(function)
        signature = whole.replace(parameters=[each for each in whole.parameters.values() if each.name not in others])
        own = [each for each in signature.parameters.values() if hints.get(each.name) is TaskContext]
        if len(own) > 1 or any(each.kind is each.POSITIONAL_ONLY for each in own):
            raise BadTask(f"task {name!r} takes its TaskContext once, and not positional-only")
        self._context: str = own[0].name if own else ""
        rest = [each for each in signature.parameters.values() if each not in own]
        self.signature: inspect.Signature = signature.replace(parameters=rest)
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        in_order = [each.name for each in signature.parameters.values() if each.kind in positional]
        self._context_at: int = in_order.index(self._context) if self._context in in_order else -1
        self._by_place = [self._decoder(each, hints) for each in rest if each.kind in positional]
        self._by_name = {each.name: self._decoder(each, hints) for each in rest if each.kind not in (each.VAR_KEYWORD,)}
        # So many positional arguments alone are always taken; what else there is, the signature judges.
        needed = [each for each in rest if each.default is each.empty and each.kind in (*positional, each.KEYWORD_ONLY)]
        self._least: int = len(needed) if all(each.kind in positional for each in needed) else len(rest) + 1
        self._most: int = len(self._by_place)
        self._more = self._rest_decoder(inspect.Parameter.VAR_POSITIONAL, rest, hints)
        self._named = self._rest_decoder(inspect.Parameter.VAR_KEYWORD, rest, hints)

    def _decoder(self, parameter: inspect.Parameter, hints: Mapping[str, Any]) -> Callable[[Any], Any]:
        hint = hints.get(parameter.name, Any)
        try:
            return decoder_of(hint)
        except TypeError as error:
            raise BadTask(
                f"task {self._name!r}: the argument {parameter.name!r} of type {hint!r} cannot be stored: {error}",
                remedy=USABLE,
            ) from None

    def _rest_decoder(
        self, kind: Any, parameters: Iterable[inspect.Parameter], hints: Mapping[str, Any]
    ) -> Callable[[Any], Any]:
        """Of `*args` or `**kwargs`: their hint is that of each."""
        found = next((each for each in parameters if each.kind is kind), None)
        return _decode_any if found is None else self._decoder(found, hints)

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> msgspec.Raw:
        """A call as it is stored. Raises TypeError when the function does not take these arguments."""
        if kwargs or not self._least <= len(args) <= self._most:
            self.signature.bind(*args, **kwargs)
        if kwargs:
            return msgspec.Raw(b'{"args":%b,"kwargs":%b}' % (_encode(args), _encode(kwargs)))
        return msgspec.Raw(b'{"args":%b}' % _encode(args))

    def decode(self, raw: bytes, context: TaskContext) -> tuple[list[Any], dict[str, Any]]:
        """What to call the function with. A payload that is no call is its one argument. Raises BadArguments."""
        try:
            call = _decode_call(raw)
        except msgspec.ValidationError:
            call = _Payload([] if raw == b"null" and not self._by_place else [msgspec.Raw(raw)])
        places = self._by_place
        try:
            args = [decode(value) for decode, value in zip(places, call.args, strict=False)]
            args += [self._more(value) for value in call.args[len(places) :]]
            kwargs = {name: self._by_name.get(name, self._named)(value) for name, value in call.kwargs.items()}
        except msgspec.ValidationError as error:
            raise BadArguments(f"the arguments do not fit: {error}") from error
        if self._context:
            if 0 <= self._context_at <= len(args):
                args.insert(self._context_at, context)
            else:
                kwargs[self._context] = context
        return args, kwargs

    def in_clear(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> msgspec.Raw:
        """`encode` for the journal of a run, which must be the same each time."""
        return self.encode(args, kwargs)

    def fit(self, raw: bytes, context: TaskContext) -> str:
        """Why these arguments cannot be passed; "" when they can."""
        args, kwargs = self.decode(raw, context)
        if self._context:
            args = [each for each in args if each is not context]
            kwargs.pop(self._context, None)
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as error:
            return str(error)
        return ""


class EncodedParameters(TaskParameters):
    """Those of a program whose codec encodes its calls."""

    def __init__(self, encoding: Encoding, *given: Any) -> None:
        super().__init__(*given)
        self._encoding = encoding

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> msgspec.Raw:
        return msgspec.Raw(self._encoding.seal(super().encode(args, kwargs)))

    def in_clear(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> msgspec.Raw:
        return super().encode(args, kwargs)

    def decode(self, raw: bytes, context: TaskContext) -> tuple[list[Any], dict[str, Any]]:
        return super().decode(self._encoding.open(raw), context)


class CallOptions(TypedDict, total=False):
    """What `Task.options` takes; see there."""

    delay: Duration
    at: datetime
    priority: Priority
    key: str
    unique: str
    ttl: Duration
    max_attempts: int
    backoff: Duration
    max_backoff: Duration
    timeout: Duration
    headers: Mapping[str, str]


class Task(Generic[P, R]):
    """A declared task. Calling it calls the function here and now; `enqueue` has it called later."""

    def __init__(
        self,
        registry: TaskRegistry,
        function: Callable[P, R],
        name: str,
        *,
        hints: Mapping[str, Any],
        others: Collection[str],
        topic: str | None,
        group: str | None,
        retries: Retries,
        keep_result: bool,
        concurrency: int | None,
        rate: float | None,
    ) -> None:
        self.name = name
        self.function = function
        self.registry = registry
        shared = topic or f"tasks.{registry.app}"
        self.topics: TaskTopics = TaskTopics(topic or f"{shared}.{name}", shared)
        self.topic: str = self.topics.normal
        self.group: str = group or registry.app
        self.retries = retries
        self.timeout_s: float = (retries.timeout_ms or 0) / 1000  # 0: as long as it takes
        self.keep_result = keep_result
        self.concurrency = concurrency
        self.rate = rate
        self.hints: Mapping[str, Any] = hints
        self.in_thread: bool = runs_in_thread(function)
        self.called: Callable[..., Any] = function  # with its dependencies, once a worker has begun
        self.decode_result: Callable[[Any], Any] = self._result_decoder(hints.get("return", Any))
        self.leave_out(others)
        if registry.encoding is not None:
            self.decode_result = registry.encoding.decoder(self.decode_result)
        self._without_options: EnqueueOptions[P, R] = EnqueueOptions(self, {})
        self.__doc__ = function.__doc__
        self.__name__ = name

    def _result_decoder(self, hint: Any) -> Callable[[Any], Any]:
        if not self.keep_result or hint in (NoReturn, Never):
            return _decode_any
        try:
            return decoder_of(hint)
        except TypeError as error:
            raise BadTask(
                f"task {self.name!r}: a result of type {hint!r} cannot be stored: {error}",
                remedy=f"{USABLE}, or give keep_result=False",
            ) from None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __getattr__(self, name: str) -> NoReturn:
        if name in CELERY:
            raise AttributeError(
                f"a task has no {name!r}: write `await {self.__dict__.get('name', 'task')}.{CELERY[name]}`"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @overload
    def enqueue(self: Task[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> BlockingTaskHandle[T]: ...

    @overload
    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> BlockingTaskHandle[R]: ...

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Have it done soon; gives its `TaskHandle`. Durable when it returns. Awaited, but not in plain functions."""
        return self._without_options.enqueue(*args, **kwargs)

    @overload
    def enqueue_many(
        self: Task[P, Coroutine[Any, Any, T]], calls: Iterable[tuple[Any, ...]]
    ) -> BlockingTaskHandles[T]: ...

    @overload
    def enqueue_many(self, calls: Iterable[tuple[Any, ...]]) -> BlockingTaskHandles[R]: ...

    def enqueue_many(self, calls: Iterable[tuple[Any, ...]]) -> Any:
        """Have many calls done, each given by a tuple of its arguments; their handles. Durable when it returns."""
        return self._without_options.enqueue_many(calls)

    def options(self, **options: Unpack[CallOptions]) -> EnqueueOptions[P, R]:
        """How the next calls are enqueued: `await send_mail.options(delay="1h").enqueue("ada")`.

        `delay` or `at` hold a call back. Calls of a higher `priority` are started first. Calls with the same `key` are
        done one after the other, in order. A second call with the same `unique` text within the node's dedupe window
        is not enqueued, and its handle is that of the first. A call that was not started within `ttl` never is.
        `max_attempts`, `backoff`, `max_backoff` and `timeout` override what the task was declared with.
        """
        return EnqueueOptions(self, options)

    @overload
    def handle(self: Task[P, Coroutine[Any, Any, T]], id: str) -> TaskHandle[T]: ...

    @overload
    def handle(self, id: str) -> TaskHandle[R]: ...

    def handle(self, id: str) -> TaskHandle[Any]:
        """The handle of a call that was enqueued elsewhere."""
        return TaskHandle(self, id, mine=False)

    def payload(self, *args: P.args, **kwargs: P.kwargs) -> msgspec.Raw:
        """What to publish to `topic` to have it done: with a reply (`ctx.publish`) or an acknowledgement."""
        return self.parameters.encode(args, kwargs)

    def in_run(self, perform: Perform, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`Perform.enqueue`: have it done by a durable run."""
        from mainspring.tasks.in_runs import start

        return start(self, perform, self.parameters.in_clear(args, kwargs))

    def leave_out(self, others: Collection[str]) -> None:
        """These parameters are no arguments: somebody provides them."""
        encoding, given = self.registry.encoding, (self.function, self.name, self.hints, others)
        self.parameters: TaskParameters = (
            TaskParameters(*given) if encoding is None else EncodedParameters(encoding, *given)
        )

    def begin(self) -> None:
        """Before it is called here. Raises when one of its dependencies is provided by nobody."""
        if self.registry.bind is not None:
            self.called = self.registry.bind(self)
            self.in_thread = runs_in_thread(self.called)

    @property
    def own_headers(self) -> dict[str, str] | None:
        """The headers of a call without options: its name, where other tasks have the same topic."""
        return {NAME: self.name} if self.registry.shares_topic(self) else None

    def call(self, raw: bytes, context: TaskContext, threads: HandlerThreads) -> Awaitable[Any]:
        """Begin to call the function with stored arguments. Raises BadArguments when their types do not fit."""
        args, kwargs = self.parameters.decode(raw, context)
        function = self.called
        around = self.registry.around
        if around is None and not self.in_thread:
            begun: Awaitable[Any] = function(*args, **kwargs)
            return begun
        if kwargs:
            function = partial(function, **kwargs)
        go = partial(threads.call, function, *args) if self.in_thread else partial(function, *args)
        return go() if around is None else around("task", self.name, (args, kwargs), context, go)


class EnqueueOptions(Generic[P, R]):
    """A task together with how its next calls are enqueued. Made by `Task.options`."""

    def __init__(self, task: Task[P, R], options: CallOptions) -> None:
        unknown = options.keys() - CallOptions.__annotations__.keys()
        if unknown:
            raise BadTask(
                f"calls of a task have no option {sorted(unknown)[0]!r}",
                remedy=f"choose from {', '.join(CallOptions.__annotations__)}",
            )
        priority = options.get("priority", "normal")
        if priority not in PRIORITIES:
            raise BadTask(f"{priority!r} is not a priority", remedy=f"choose from {', '.join(PRIORITIES)}")
        if "key" in options and priority != "normal":
            raise BadTask("calls with a key are kept in order, so they have no priority", remedy="give one of them")
        at = options.get("at")
        self._task = task
        self._options = options
        self._key = options.get("key")
        self._topic = task.topics.lane(priority, self._key)
        self._delay_ms = duration_ms(options.get("delay", 0))
        self._not_before = 0 if at is None else round(at.timestamp() * 1000)

    @overload
    def enqueue(
        self: EnqueueOptions[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> BlockingTaskHandle[T]: ...

    @overload
    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> BlockingTaskHandle[R]: ...

    @blocking_verb
    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """`Task.enqueue` with these options."""
        call = self._task.parameters.encode(args, kwargs)
        port = self._task.registry.port
        return port.call(self._enqueue(port, call))

    @overload
    def enqueue_many(
        self: EnqueueOptions[P, Coroutine[Any, Any, T]], calls: Iterable[tuple[Any, ...]]
    ) -> BlockingTaskHandles[T]: ...

    @overload
    def enqueue_many(self, calls: Iterable[tuple[Any, ...]]) -> BlockingTaskHandles[R]: ...

    @blocking_verb
    def enqueue_many(self, calls: Iterable[tuple[Any, ...]]) -> Any:
        """`Task.enqueue_many` with these options."""
        port = self._task.registry.port
        return port.call(self._enqueue_many(port, calls))

    async def _enqueue(self, port: TaskPort, call: msgspec.Raw) -> TaskHandle[Any]:
        task = self._task
        await task.registry.ready(task)
        unique = self._options.get("unique")
        id = port.new_id() if unique is None else f"{task.name}:{unique}"
        await port.publish(self._topic, self._new_call(id, call, self._headers(port.wall_ms)))
        return TaskHandle(task, id, mine=True)

    async def _enqueue_many(self, port: TaskPort, calls: Iterable[tuple[Any, ...]]) -> list[TaskHandle[Any]]:
        task = self._task
        await task.registry.ready(task)
        handles: list[TaskHandle[Any]] = []
        headers = self._headers(port.wall_ms)

        def each() -> Iterator[NewCall]:
            for args in calls:
                id = port.new_id()
                handles.append(TaskHandle(task, id, mine=True))
                yield self._new_call(id, task.parameters.encode(args, {}), headers)

        await port.publish_many(self._topic, each())
        return handles

    def new_call(
        self, id: str, args: tuple[Any, ...], kwargs: dict[str, Any], wall_ms: Callable[[], int]
    ) -> tuple[str, NewCall]:
        """The topic of a call and what to publish there, for who stores it by other means. `unique` is its id."""
        unique = self._options.get("unique")
        call_id = id if unique is None else f"{self._task.name}:{unique}"
        call = self._task.parameters.encode(args, kwargs)
        return self._topic, self._new_call(call_id, call, self._headers(wall_ms))

    def _new_call(self, id: str, call: msgspec.Raw, headers: dict[str, str] | None) -> NewCall:
        return NewCall(id, call, self._key, headers, self._delay_ms, self._not_before)

    def _headers(self, wall_ms: Callable[[], int]) -> dict[str, str] | None:
        task, options = self._task, self._options
        if not options:
            return task.own_headers
        headers = {**options.get("headers", {}), NAME: task.name}
        if options.keys() & {"max_attempts", "backoff", "max_backoff"}:
            declared = task.retries.backoff
            headers[RETRY] = retries_header(
                retries_of(
                    {
                        "max_attempts": options.get("max_attempts", task.retries.max_attempts),
                        "backoff": options.get("backoff", declared.first_ms / 1000),
                        "max_backoff": options.get("max_backoff", declared.longest_ms / 1000),
                    }
                )
            )
        if "timeout" in options:
            headers[TIMEOUT] = f"{duration_ms(options['timeout']) / 1000:g}"
        if "ttl" in options:
            headers[EXPIRES] = str(wall_ms() + duration_ms(options["ttl"]))
        return headers


def starts_per_second(rate: str | None) -> float | None:
    """`"100/s"`, `"30/m"` or `"10/h"` as a number. Raises BadTask."""
    if rate is None:
        return None
    count, slash, unit = rate.partition("/")
    seconds = {"s": 1, "m": 60, "h": 3_600}.get(unit.strip())
    try:
        found = float(count) / (seconds or 0)
    except (ValueError, ZeroDivisionError):
        found = 0.0
    if not (slash and 0 < found < float("inf")):
        raise BadTask(f"{rate!r} is not a rate", remedy='write "100/s", "30/m" or "10/h"')
    return found


class TaskRegistry:
    """The tasks of one program, by name, and how they reach a node."""

    def __init__(self, app: str, encoding: Encoding | None = None) -> None:
        self.app = app
        self.encoding = encoding  # of calls and results
        self.around: Callable[..., Awaitable[Any]] | None = None  # the app's middleware
        self.bind: Callable[[Task[..., Any]], Callable[..., Any]] | None = None  # gives a function its dependencies
        self._tasks: dict[str, Task[..., Any]] = {}
        self._topics: dict[str, int] = {}  # how many tasks have this topic
        self._port: TaskPort | None = None
        self._client: Client | SyncClient | None = None  # through which a port is made when it is needed
        self._ready: set[str] = set()
        self._records: dict[str, TaskRecords] = {}

    def add(self, task: Task[..., Any]) -> None:
        """Raises BadTask when the name is taken."""
        if task.name in self._tasks:
            raise BadTask(f"app {self.app!r} already has a task {task.name!r}", remedy="give it another name")
        if task.name in RESERVED:
            raise BadTask(f"a task cannot be named {task.name!r}", remedy="give it another name")
        for other in self._tasks.values():
            if other.topic == task.topic and other.group != task.group:
                raise BadTask(f"tasks {other.name!r} and {task.name!r} have one topic, so they need one group")
        self._tasks[task.name] = task
        self._topics[task.topic] = self._topics.get(task.topic, 0) + 1

    def __iter__(self) -> Iterator[Task[..., Any]]:
        return iter(self._tasks.values())

    def __len__(self) -> int:
        return len(self._tasks)

    def get(self, name: str) -> Task[..., Any] | None:
        """The task of this name."""
        return self._tasks.get(name)

    def shares_topic(self, task: Task[..., Any]) -> bool:
        """Whether other tasks have the same topic."""
        return self._topics[task.topic] > 1

    @property
    def port(self) -> TaskPort:
        """How tasks reach a node now. Raises NotServed."""
        if self._port is None:
            if self._client is None:
                raise not_served(self.app)
            from mainspring.client import SyncClient
            from mainspring.tasks.ports import ClientPort, SyncClientPort

            client = self._client
            self._port = SyncClientPort(client) if isinstance(client, SyncClient) else ClientPort(client)
        return self._port

    def use(self, port: TaskPort | None) -> None:
        """Reach the node like this from now on; None: not at all."""
        self._port = port
        self._client = None
        self._ready.clear()
        self._records.clear()

    def use_client(self, client: Client | SyncClient) -> None:
        """Reach the node through a client from now on."""
        from mainspring.client import SyncClient

        self.use(None)
        self._client = client
        if isinstance(client, SyncClient) and self._forked not in client.on_fork:
            client.on_fork.append(self._forked)

    def _forked(self) -> None:
        """A blocking client starts anew in a child process, and so does what was learned through it."""
        if self._client is not None:
            self.use_client(self._client)

    async def ready(self, task: Task[..., Any]) -> None:
        """Make sure that the task's topics exist; done once per connection."""
        if task.name not in self._ready:
            await self.port.prepare(task.topics.settings())
            await self.records(task).mark()
            self._ready.add(task.name)

    def records(self, task: Task[..., Any]) -> TaskRecords:
        """What is known of the task's calls."""
        topic = task.topics.results
        if topic not in self._records:
            self._records[topic] = TaskRecords(self.port, topic)
        return self._records[topic]
