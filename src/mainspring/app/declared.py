"""What decorators leave behind: plain data, read by whoever boots the program."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from mainspring.app.event import BlockingEvent, Event
from mainspring.bus import BusError, Compatibility, Overlap, Schedule, Start, TopicConfig, check_name
from mainspring.bus.access import Pattern
from mainspring.bus.topics import topic_from
from mainspring.data_types import USABLE, decoder_of
from mainspring.durations import Duration, duration_ms, per_second
from mainspring.errors import MainspringError
from mainspring.kernel import Blob, CapabilityError, Handler, Isolation, RestartPolicy
from mainspring.loop import HandlerThreads, runs_in_thread
from mainspring.retries import ALWAYS, Retries, RetryOptions, retries_of
from mainspring.runs import Effect, Runtime, answer_type


def refuse_bare(decorator: str, given: object, example: str) -> None:
    """Without parentheses a decorator takes the function for its argument, and nothing would be declared."""
    if inspect.isfunction(given):
        raise CapabilityError(
            f"{decorator} above {given.__name__} does not say what it is for", remedy=f"write {decorator}({example})"
        )


@dataclass(frozen=True, slots=True)
class Declared:
    """One handler of messages, and what was said about its capability."""

    handler: Handler
    durable: bool | None = None
    isolation: Isolation | None = None
    memory_mb: int | None = None
    restart: RestartPolicy | None = None


@dataclass(frozen=True, slots=True)
class DeclaredProgram:
    """A program that runs are made of."""

    function: Callable[..., Any]
    name: str | None = None


@dataclass(frozen=True, slots=True)
class DeclaredAnswer:
    """A function that answers an effect."""

    effect: type[Effect[Any]]
    function: Callable[..., Any]
    options: Mapping[str, Any]  # of `Runtime.handle`


@dataclass(frozen=True, slots=True)
class ConsumerLimits:
    """How fast a group may be; 0: no limit."""

    per_second: float = 0  # events that one node begins with
    key_concurrency: int = 0  # events of one key at a time
    group_concurrency: int = 0  # events at a time, by all members of the group


NO_LIMITS = ConsumerLimits()
_BATCH_WAIT = "50ms"


@dataclass(frozen=True, slots=True)
class DeclaredConsumer:
    """A function that is given the events of a topic as a member of a group."""

    topic: str
    group: str
    function: Callable[..., Any]
    payload: Any = Any
    start: Start | None = None
    concurrency: int = 1
    max_inflight: int = 1
    retries: Retries = ALWAYS
    limits: ConsumerLimits = NO_LIMITS
    batch: int = 0  # 0: the function gets one event, else a list of so many
    wait_ms: int = 0  # for a batch to become full
    takes_event: bool = True
    store_each: bool = False  # store each acknowledgement at once instead of with others some milliseconds later
    schedule: str = ""  # the schedule whose firings these events are
    one_node: bool = False  # one node at a time takes events of the group
    place: str = ""  # the file and line of the function
    app: str = ""  # the app's name, where `group` was not given and is made from it
    around: Callable[..., Awaitable[Any]] | None = None  # the app's middleware
    transaction: bool = False  # what the function does on `event.connection` is committed with the acknowledgement

    @property
    def is_pattern(self) -> bool:
        """Whether `topic` stands for all topics whose names fit."""
        return "*" in self.topic

    @property
    def name(self) -> str:
        """For people: the topic and the group."""
        return f"{self.topic} as {self.group}"


@dataclass(frozen=True, slots=True)
class DeclaredSchedule:
    """A function that is called again and again: its rows are in the log, its firings are events of a topic.

    `times` are the members of a `Schedule` that say when, without those that are not given.
    """

    name: str
    function: Callable[..., Any]
    times: Mapping[str, Any]
    overlap: Overlap = "queue"
    retries: Retries = ALWAYS
    takes_event: bool = False


def consumer_from(
    topic: str,
    function: Callable[..., Any],
    *,
    app: str,
    group: str | None,
    from_: Start | None,
    concurrency: int,
    numbers: Mapping[str, int | None],
    rate: str | None,
    wait: Duration | None,
    transaction: bool,
    retries: RetryOptions,
    local_names: dict[str, Any],
    others: Collection[str],
) -> DeclaredConsumer:
    """Read a function's hint: its one parameter is an `Event` of the payload's type. Raises `CapabilityError`.

    Without `group` it is made from the names of the app and the function. `numbers` are options that are 1 or more, or
    not given: max_inflight, batch, key_concurrency, group_concurrency. `others` are parameters that are provided.
    """
    where = f"the consumer of {topic!r}"
    try:
        if Pattern(topic).is_literal:
            check_name("topic", topic)
        if group:
            check_name("group", group)
    except MainspringError as error:
        raise CapabilityError(f"{where}: {error.message}", remedy=error.remedy) from None
    for name, number in {"concurrency": concurrency, **numbers}.items():
        check_number(f"{where}: {name}", number)
    given = {name: number or 0 for name, number in numbers.items()}
    batch = given["batch"]
    if wait is not None and not batch:
        raise CapabilityError(f"{where}: `wait` is for a batch to become full", remedy="give batch=, or leave it out")
    if transaction and batch:
        raise CapabilityError(f"{where}: transaction=True takes events one by one", remedy="leave out batch")
    if transaction and not inspect.iscoroutinefunction(inspect.unwrap(function)):
        raise CapabilityError(f"{where}: transaction=True needs an async function", remedy="write async def")
    try:
        signature = signature_without(function, others)
        signature.bind(None)
    except (TypeError, ValueError):
        raise CapabilityError(f"{where} must take the event", remedy="async def bill(event: Event[Order])") from None
    hint = hints_of(function, where, local_names).get(next(iter(signature.parameters)), Any)
    return DeclaredConsumer(
        topic,
        group or _default_group(app, function, where),
        function,
        _payload_of(hint, where, in_list=bool(batch)),
        from_,
        concurrency,
        max(given["max_inflight"], concurrency * max(1, batch)),
        checked_retries(where, retries),
        ConsumerLimits(0 if rate is None else per_second(rate), given["key_concurrency"], given["group_concurrency"]),
        batch,
        duration_ms(_BATCH_WAIT if wait is None else wait),
        place=place_of(function),
        app="" if group else app,
        transaction=transaction,
    )


def _payload_of(hint: Any, where: str, *, in_list: bool) -> Any:
    """The payload's type in `Event[T]`, or in `list[Event[T]]` for a batch."""
    wanted = "list[Event[Order]]" if in_list else "Event[Order]"
    found = hint
    if in_list and hint is not Any:
        (found,) = typing.get_args(hint) if typing.get_origin(hint) is list else (None,)
    if found in (Any, Event, BlockingEvent):
        return Any
    if typing.get_origin(found) not in (Event, BlockingEvent):
        raise CapabilityError(f"{where} gets {wanted}, not {hint!r}", remedy=f"write events: {wanted}")
    (payload,) = typing.get_args(found)
    check_types(where, {"the payload": payload})
    return payload


def check_types(where: str, types: Mapping[str, Any]) -> None:
    """Refuse a type of which no value could ever come or go, by what it is the type of. Raises CapabilityError."""
    for what, hint in types.items():
        if hint in (Blob, typing.NoReturn, typing.Never):
            continue
        try:
            decoder_of(hint)
        except (TypeError, NameError) as error:
            raise CapabilityError(f"{where}: {what} has an unusable type: {error}", remedy=USABLE) from None


def check_number(what: str, number: object) -> None:
    """Refuse what is given and cannot be a number of things. Raises CapabilityError."""
    if number is not None and not (isinstance(number, int) and number >= 1):
        raise CapabilityError(f"{what} is 1 or more, not {number!r}")


def check_restart(what: str, given: object) -> None:
    """Raises CapabilityError for what is no policy."""
    if given is not None and not isinstance(given, RestartPolicy):
        raise CapabilityError(f"{what}: restart is a RestartPolicy, not {given!r}", remedy="write RestartPolicy(...)")


def check_hook(function: Any, others: Collection[str]) -> None:
    """Refuse what cannot be called when a node starts or stops. Raises CapabilityError."""
    try:
        signature_without(function, others)
    except ValueError:  # written in C, and it does not say what it takes
        return
    except TypeError:
        raise CapabilityError(f"a hook is a function, not {function!r}") from None
    if not _takes(function, others=others) and not _takes(function, None, others=others):
        raise CapabilityError(
            f"the hook {getattr(function, '__name__', function)} ({place_of(function)}) takes nothing, or the app",
            remedy="async def open_database(app: App) -> None",
        )


def checked_retries(where: str, given: RetryOptions) -> Retries:
    """Raises CapabilityError for what cannot be."""
    try:
        return retries_of(given)
    except ValueError as error:
        raise CapabilityError(f"{where}: {error}") from None


def _default_group(app: str, function: Callable[..., Any], where: str) -> str:
    name = getattr(function, "__name__", "")
    if not name.isidentifier():  # a lambda, a partial, an object that can be called
        raise CapabilityError(f"{where} has no name that its group could have", remedy='give group="billing"')
    return f"{app}.{name}"


def signature_without(function: Callable[..., Any], others: Collection[str]) -> inspect.Signature:
    """The signature of a function, but for these parameters. Raises TypeError or ValueError when it has none."""
    signature = inspect.signature(function)
    return signature.replace(parameters=[each for each in signature.parameters.values() if each.name not in others])


def place_of(function: Callable[..., Any]) -> str:
    """The file and line where a function is written; "" for what is not written in Python."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return "" if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def refuse_shared_groups(consumers: Iterable[DeclaredConsumer]) -> None:
    """Each consumer of a topic is a group of its own: two in one group would get a part of the events each."""
    consumers = list(consumers)
    for number, each in enumerate(consumers):
        other = next((other for other in consumers[:number] if _share_a_group(each, other)), None)
        if other is not None:
            raise CapabilityError(
                f"group {each.group!r} of topic {each.topic!r} is declared twice: {other.place} and {each.place}",
                remedy="give each its own group=, or one of them concurrency=",
            )


def _share_a_group(one: DeclaredConsumer, other: DeclaredConsumer) -> bool:
    """Whether they may be given events of one topic in one group; of two patterns that is not found out."""
    if one.group != other.group or not (one.is_pattern or other.is_pattern):
        return one.group == other.group and one.topic == other.topic
    if one.is_pattern and other.is_pattern:
        return True
    pattern, topic = (one.topic, other.topic) if one.is_pattern else (other.topic, one.topic)
    return Pattern(pattern).covers_topic(topic)


def program_from(function: Any, name: str | None, known: Iterable[DeclaredProgram]) -> DeclaredProgram:
    """Check that this can be a program beside those known. Raises `CapabilityError`, which names its place."""
    where = f"@app.run above {getattr(function, '__name__', function)} ({place_of(function)})"
    for each in known:
        if each.function is not function and (name or function.__name__) == (each.name or each.function.__name__):
            raise CapabilityError(
                f"{where}: there is a run of this name at {place_of(each.function)}", remedy="give it another name="
            )
    if hasattr(function, "__bind_program__"):  # a guest
        return DeclaredProgram(function, name)
    example = "async def checkout(order: Order, perform: Perform)"
    if inspect.isgeneratorfunction(function):
        return DeclaredProgram(function, name)
    if not inspect.iscoroutinefunction(function):
        raise CapabilityError(f"{where}: a run is an async function, not {function!r}", remedy=f"write {example}")
    parameters = list(inspect.signature(function).parameters.values())
    positional = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    hint = getattr(positional[-1].annotation, "__name__", positional[-1].annotation) if positional else ""
    if not positional or (positional[-1].name != "perform" and str(hint).rpartition(".")[2] != "Perform"):
        raise CapabilityError(f"{where}: its last parameter is not `perform`", remedy=f"write {example}")
    others = [each for each in parameters if each not in positional and each.default is each.empty]
    if others:
        raise CapabilityError(
            f"{where}: a run is started with positional arguments, so it cannot take `{others[0].name}`",
            remedy=f"write {example}",
        )
    hints = _known_hints(function)
    check_types(where, {each: hint for each, hint in hints.items() if each != positional[-1].name})
    return DeclaredProgram(function, name)


def _known_hints(given: Any) -> dict[str, Any]:
    """The type hints of a function or class; none when one of them exists only for type checkers."""
    try:
        return typing.get_type_hints(given)
    except Exception:
        return {}


def answer_from(
    effect: type[Effect[Any]], function: Callable[..., Any], others: Collection[str], **options: Any
) -> DeclaredAnswer:
    """Check what is said about a handler by registering it. Raises `CapabilityError`, which names its place."""
    checked = function
    if others:

        def checked(*_: Any) -> None: ...

        checked.__signature__ = signature_without(function, others)  # type: ignore[attr-defined]
    try:
        Runtime().handle(effect, checked, **options)
    except (TypeError, ValueError, MainspringError) as error:
        name = getattr(effect, "__name__", effect)
        raise CapabilityError(f"@app.handles({name}) ({place_of(function)}): {error}") from None
    where = f"@app.handles({effect.__name__}) ({place_of(function)})"
    hints = _known_hints(effect)
    fields = {each: hints.get(each, Any) for each in effect.__struct_fields__}
    check_types(where, {**fields, "the answer": answer_type(effect)})
    return DeclaredAnswer(effect, function, options)


def schedule_from(
    function: Callable[..., Any],
    *,
    times: Mapping[str, Any],
    name: str,
    overlap: Overlap,
    retries: RetryOptions,
    others: Collection[str],
) -> DeclaredSchedule:
    """Raises `CapabilityError` for times that cannot be, and for functions that cannot be called."""
    try:
        wanted = Schedule(name=name, topic=name, payload=msgspec.Raw(b"null"), overlap=overlap, **times)
        wanted.check()
    except BusError as error:
        raise CapabilityError(
            f"the schedule {name!r} ({place_of(function)}): {error.message}", remedy=error.remedy
        ) from None
    takes_event = not _takes(function, others=others)
    if takes_event and not _takes(function, None, others=others):
        raise CapabilityError(
            f"the scheduled function {function!r} takes nothing, or the event of its firing",
            remedy="async def nightly(event: Event) -> None",
        )
    checked = checked_retries(f"the schedule {name!r}", retries)
    return DeclaredSchedule(name, function, times, overlap, checked, takes_event=takes_event)


def _takes(function: Callable[..., Any], *arguments: Any, others: Collection[str] = ()) -> bool:
    try:
        signature_without(function, others).bind(*arguments)
    except (TypeError, ValueError):
        return False
    return True


def hints_of(function: Any, where: str, local_names: dict[str, Any]) -> dict[str, Any]:
    """The type hints of a function, names of the place where it was declared included. Raises `CapabilityError`."""
    target = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    module = sys.modules.get(getattr(target, "__module__", None) or "", None)
    known = {**getattr(module, "__dict__", {}), **getattr(target, "__globals__", {})}
    try:
        return typing.get_type_hints(target, globalns=known, localns=local_names or None, include_extras=True)
    except NameError as error:
        raise CapabilityError(
            f"{where} has a type hint that is not known here: {error}", remedy="define the type before the function"
        ) from None


@dataclass(frozen=True, slots=True)
class DeclaredTopic:
    """A topic and those of its settings that the program cares about, by their names in `TopicConfig`."""

    topic: str
    settings: Mapping[str, Any]

    def over(self, known: TopicConfig) -> TopicConfig:
        """The settings as they shall be, given those there are. Raises BadFrame."""
        changed = msgspec.structs.replace(known, **self.settings)
        wanted = topic_from(msgspec.to_builtins(changed))  # a replaced member is not checked; one read from data is
        return msgspec.structs.replace(wanted, partitions=max(known.partitions, wanted.partitions))


@dataclass(frozen=True, slots=True)
class DeclaredPages:
    """A folder of files for browsers, and where the node serves them. `policy` None: the node's own."""

    path: str
    folder: Path
    policy: str | None = None


Hook = Callable[..., Any]
Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]


@dataclass
class Hooks:
    """The declared functions of one program."""

    lifespan: Lifespan | None = None
    on_start: list[Hook] = field(default_factory=list)
    on_stop: list[Hook] = field(default_factory=list)

    async def enter(self, app: Any, undo: AsyncExitStack, threads: HandlerThreads) -> None:
        """Start; how to stop is pushed on `undo` at once."""
        starting, stopping = ([_bound(app, hook) for hook in hooks] for hooks in (self.on_start, self.on_stop))
        if self.lifespan is not None:
            await undo.enter_async_context(self.lifespan(app))
        for hook in starting:
            await _call(hook, app, threads)
        for hook in stopping:
            undo.push_async_callback(_call, hook, app, threads)


def _bound(app: Any, hook: Hook) -> Hook:
    bound: Hook = app.dependencies.bind(hook, "hook", getattr(hook, "__name__", str(hook)))
    return bound


async def _call(hook: Hook, app: Any, threads: HandlerThreads) -> None:
    """A hook takes the app, or nothing; a plain one runs in a thread."""
    given = (app,) if _takes(hook, app) else ()
    await (threads.call(hook, *given) if runs_in_thread(hook) else hook(*given))


@dataclass(frozen=True, slots=True)
class DeclaredSchema:
    """A JSON Schema or a Python type for the payloads of a topic."""

    topic: str
    given: Any
    compatibility: Compatibility | None = None
    place: str = ""  # the file and line where it is declared


@dataclass(frozen=True, slots=True)
class DeclaredUpcaster:
    """A function from a payload of `version` to one of the next."""

    topic: str
    version: int
    step: Callable[[Any], Any]


@dataclass
class DeclaredSchemas:
    """Everything one program says about payloads."""

    schemas: list[DeclaredSchema] = field(default_factory=list)
    upcasters: list[DeclaredUpcaster] = field(default_factory=list)
