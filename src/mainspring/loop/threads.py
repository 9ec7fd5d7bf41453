"""Threads for the plain functions of a program: what is written with `def` runs here, what is `async def` on the loop.

    threads = HandlerThreads(40)                      # one per node
    result = await threads.call(function, event)      # on the loop: runs `function(event)` in a thread
    runs_in_thread(function)                          # at declaration: whether it is a plain function
    BlockingEvent = with_blocking_verbs(Event)        # the class of what such a function is given

`call` begins at once if a thread is free, else as soon as one is; its future gives what the function returned or
raised. Context variables travel along. If the function returns something to await, that is awaited on the loop.

What a plain function is given (`ctx`, `event`) belongs to the loop. Methods of a class made by `with_blocking_verbs`,
and functions marked with `blocking_verb`, may be called from its thread: they are carried out on the loop, in the
context of the caller, and the thread waits for the result, also of a coroutine. Called on the loop they are what they
were. A thread that waits like that does not count: another one may begin, so that functions which ask each other cannot
use up the threads. A function whose call was cancelled cannot be interrupted, but its next verb raises CancelledError.

Under virtual time one thread moves at a time: the loop's thread waits until the function has ended or waits in a verb.
So the order of everything depends on the program and the seed alone, and time passes only while a function waits in a
verb. There `call` gives a future that is done already, unless the function waits.

The threads are daemons: one that never ends does not keep the process from ending.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
import logging
import sys
import threading
import traceback
import types
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from queue import Empty, SimpleQueue
from typing import Any, Final, ParamSpec, TypeVar

from mainspring.durations import duration_text
from mainspring.loop.deadlines import call_at_deadline, time_limit
from mainspring.loop.errors import HandlerTimeout
from mainspring.loop.futures_and_tasks import reject, resolve, wake
from mainspring.loop.virtual_time import VirtualEventLoop

_P = ParamSpec("_P")
_T = TypeVar("_T")

logger: logging.Logger = logging.getLogger("mainspring.loop")

# Such functions wait for databases and other servers far more than they compute, so the number of processors says
# nothing. It is the number FastAPI uses.
DEFAULT_SIZE: Final = 40

_SAY_AFTER_S: Final = 10.0  # real time after which a function that holds up virtual time is named
_RETURNS_WITHIN_S: Final = 5.0  # of a function that nobody waits for any more: it may look whether it was cancelled

_here = threading.local()  # `call`: what this thread is doing
_numbers = itertools.count(1)


def runs_in_thread(function: Callable[..., Any]) -> bool:
    """Whether this is a plain function (or callable object), whose call may block."""
    return not inspect.iscoroutinefunction(function) and not inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - the method is looked at, not asked for
    )


def blocking_verb(verb: Callable[_P, _T]) -> Callable[_P, _T]:
    """Let plain functions call this from their threads: it is carried out on the loop while they wait."""

    @functools.wraps(verb)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        doing: _Call | None = getattr(_here, "call", None)
        return verb(*args, **kwargs) if doing is None else doing.wait_for(functools.partial(verb, *args, **kwargs))

    return call


def current_threads() -> HandlerThreads | None:
    """Those to one of which the present thread belongs; None outside a plain function."""
    doing: _Call | None = getattr(_here, "call", None)
    return None if doing is None else doing.threads


def with_blocking_verbs(given: type[_T]) -> type[_T]:
    """A subclass for plain functions: its public methods are blocking verbs. `async def` ones need not pay for that."""
    verbs = {
        name: blocking_verb(method)
        for name, method in inspect.getmembers(given, inspect.isfunction)
        if not name.startswith("_")
    }
    members: dict[str, Any] = {"__module__": given.__module__, "__doc__": given.__doc__, **verbs}
    if type(given) is type:  # a msgspec Struct makes its own
        members["__slots__"] = ()
    parameters = getattr(given, "__parameters__", ())
    base: Any = given[parameters] if parameters else given  # type: ignore[index]
    made: type[_T] = types.new_class(given.__name__, (base,), exec_body=lambda namespace: namespace.update(members))
    return made


async def in_time(limit_ms: int, function: Callable[..., Coroutine[Any, Any, _T]], /, *args: Any) -> _T:
    """Await `function(*args)`, at most so long; then it is cancelled. Raises HandlerTimeout."""
    limit: asyncio.Timeout | None = None
    try:
        async with time_limit(limit_ms / 1000) as limit:
            return await function(*args)
    except TimeoutError:
        if limit is not None and limit.expired():
            raise _took_too_long(limit_ms) from None
        raise


def _took_too_long(limit_ms: int) -> HandlerTimeout:
    return HandlerTimeout(f"the attempt took longer than {duration_text(limit_ms)}")


class HandlerThreads:
    """At most `size` threads that compute or block; those that wait in a verb come on top. Used on one event loop.

    `on_stuck` is called on the loop when a function still runs some seconds after its call was cancelled.
    """

    def __init__(self, size: int = DEFAULT_SIZE, on_stuck: Callable[[], object] | None = None) -> None:
        self.size = size
        self.on_stuck = on_stuck
        self.busy: int = 0  # threads that run a function and do not wait in a verb
        self._calls: set[_Call] = set()  # begun and not ended
        self._queue: deque[_Call] = deque()
        self._idle: list[SimpleQueue[_Call | None]] = []
        self._waiters: list[asyncio.Future[None]] = []
        self._all: set[SimpleQueue[_Call | None]] = set()
        self._end = weakref.finalize(self, _end_threads, self._all)

    @property
    def waiting(self) -> int:
        """Calls for which no thread is free."""
        return len(self._queue)

    def call(self, function: Callable[..., Any], /, *args: Any, limit_ms: int | None = None) -> asyncio.Future[Any]:
        """Run `function(*args)` in a thread, in a copy of the present context.

        `limit_ms` after a thread has begun with it, nobody waits any longer: the result is HandlerTimeout. The function
        cannot be interrupted; the log names its thread.
        """
        call = _Call(self, function, args, limit_ms)
        self._queue.append(call)
        self._begin_waiting()
        return call.result

    async def idle(self) -> None:
        """Wait until no function runs and none waits for a thread."""
        while self._calls or self._queue:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def close(self) -> None:
        """Begin nothing more and end the threads; those that are busy end with their function."""
        self._end()
        self._idle.clear()
        for call in self._queue:
            call.result.cancel()
        self._queue.clear()

    def _begin_waiting(self) -> None:
        while self._queue and self.busy < self.size:
            call = self._queue.popleft()
            if call.result.done():
                continue  # nobody waits for it any more
            self.busy += 1
            self._calls.add(call)
            if self._idle:
                jobs = self._idle.pop()
            else:
                jobs = SimpleQueue()
                self._all.add(jobs)
                name = f"mainspring-handler-{next(_numbers)}"
                threading.Thread(target=_serve, args=(jobs,), name=name, daemon=True).start()
            call.begin(jobs)

    # Called on the loop for a call

    def runs(self, call: _Call) -> bool:
        """Whether a thread is still busy with it."""
        return call in self._calls

    def pause(self) -> None:
        """A function waits in a verb: its thread does not count."""
        self.busy -= 1
        self._begin_waiting()

    def go_on(self) -> None:
        """It goes on, whatever the others do meanwhile."""
        self.busy += 1

    def ended(self, call: _Call, jobs: SimpleQueue[_Call | None]) -> None:
        """A function returned or raised, and its thread is free."""
        self.busy -= 1
        self._calls.discard(call)
        if self._end.alive and len(self._idle) < self.size:
            self._idle.append(jobs)
        else:
            self._all.discard(jobs)
            jobs.put(None)
        self._begin_waiting()
        if not self._calls and not self._queue:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                wake(waiter)


def _end_threads(threads: set[SimpleQueue[_Call | None]]) -> None:
    """Each ends when it has nothing to do. One whose event loop is gone cannot say so: it is told all the same."""
    while threads:
        threads.pop().put(None)


def _serve(jobs: SimpleQueue[_Call | None]) -> None:
    """The life of one thread: one call after the other."""
    while (call := jobs.get()) is not None:
        _here.call, call.thread, value, error = call, threading.get_ident(), None, None
        try:
            value = call.context.run(call.function, *call.args)
        except BaseException as raised:
            error = raised
        _here.call = None
        call.tell(call.end, jobs, value, error)
        del call, value, error  # a thread that rests keeps nothing alive


class _Call:
    """One function on its way through a thread."""

    def __init__(
        self, threads: HandlerThreads, function: Callable[..., Any], args: tuple[Any, ...], limit_ms: int | None
    ) -> None:
        self.function = function
        self.args = args
        self._limit_ms = limit_ms
        self.context: Context = copy_context()
        self.threads = threads
        self._aio = asyncio.get_running_loop()
        self.result: asyncio.Future[Any] = self._aio.create_future()
        self.thread: int = 0  # its ident, once it has begun
        self._answers: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        # Under virtual time: what the thread has to tell when it gives the turn back.
        self._told: SimpleQueue[tuple[Any, ...]] | None = None
        if isinstance(self._aio, VirtualEventLoop):
            self._told = SimpleQueue()

    # In the thread

    def wait_for(self, verb: Callable[[], _T]) -> _T:
        """Have this carried out on the loop; gives its result."""
        self.tell(self._carry_out, verb, copy_context())
        value, error = self._answers.get()
        if error is not None:
            raise error
        result: _T = value
        return result

    def tell(self, function: Callable[..., object], *args: Any) -> None:
        """Have this called on the loop's thread."""
        if self._told is not None:
            self._told.put((function, *args))
            return
        try:
            self._aio.call_soon_threadsafe(function, *args)
        except RuntimeError:  # the event loop is closed: nobody waits any more
            self._answers.put((None, asyncio.CancelledError()))

    # On the loop

    def begin(self, jobs: SimpleQueue[Any]) -> None:
        """A thread is free."""
        if self._limit_ms is not None:
            cancel = call_at_deadline(self._limit_ms / 1000, functools.partial(self._take_too_long, self._limit_ms))
            self.result.add_done_callback(lambda _: cancel())
        if self.threads.on_stuck is not None:
            self.result.add_done_callback(self._watch)
        self.hand_over(jobs, self)

    def _watch(self, _: asyncio.Future[Any]) -> None:
        if self.threads.runs(self):
            self._aio.call_later(_RETURNS_WITHIN_S, self._report_stuck)

    def _report_stuck(self) -> None:
        if self.threads.runs(self) and self.threads.on_stuck is not None:
            self.threads.on_stuck()

    def _take_too_long(self, limit_ms: int) -> None:
        name = next((each.name for each in threading.enumerate() if each.ident == self.thread), "of its own")
        reject(self.result, _took_too_long(limit_ms))
        logger.warning(
            "%s took longer than %s and is not waited for; thread %s goes on until it returns",
            getattr(self.function, "__qualname__", self.function),
            duration_text(limit_ms),
            name,
        )

    def hand_over(self, to: SimpleQueue[Any], item: Any) -> None:
        """Let the thread move. Under virtual time nothing else does, until it has something to tell."""
        to.put(item)
        if self._told is None:
            return
        while True:
            try:
                function, *args = self._told.get(timeout=_SAY_AFTER_S)
                break
            except Empty:
                self._say_who_holds_the_turn()
        if function == self.end:
            function(*args)
        else:
            self._aio.call_soon(function, *args)

    def end(self, jobs: SimpleQueue[_Call | None], value: Any, error: BaseException | None) -> None:
        if error is None and inspect.isawaitable(value):
            self._await(value, self.context, self._settle)
        else:
            self._settle(value, error)
        self.threads.ended(self, jobs)

    def _settle(self, value: Any, error: BaseException | None) -> None:
        if isinstance(error, StopIteration):  # no future takes it
            error = RuntimeError(f"a function raised StopIteration: {error}")
        if error is None:
            resolve(self.result, value)
        elif isinstance(error, asyncio.CancelledError):
            self.result.cancel()
        else:
            reject(self.result, error)

    def _carry_out(self, verb: Callable[[], Any], context: Context) -> None:
        self.threads.pause()
        if self.result.done():
            self._answer(None, asyncio.CancelledError())
            return
        try:
            value = context.run(verb)
        except BaseException as error:
            self._answer(None, error)
            return
        if inspect.isawaitable(value):
            self._await(value, context, self._answer)
        else:
            self._answer(value, None)

    def _await(self, value: Any, context: Context, then: Callable[[Any, BaseException | None], None]) -> None:
        """Wait on the loop, unless the call is cancelled meanwhile; `then` gets the result or the error."""
        task = self._aio.create_task(_awaited(value), context=context)

        def give_up(_: asyncio.Future[Any]) -> None:
            task.cancel()

        def done(task: asyncio.Task[Any]) -> None:
            self.result.remove_done_callback(give_up)
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            then(None if error is not None else task.result(), error)

        self.result.add_done_callback(give_up)
        task.add_done_callback(done)

    def _answer(self, value: Any, error: BaseException | None) -> None:
        self.threads.go_on()
        self.hand_over(self._answers, (value, error))

    def _say_who_holds_the_turn(self) -> None:
        frame = sys._current_frames().get(self.thread)
        stack = "".join(traceback.format_stack(frame)[-3:]) if frame is not None else "a thread that has not begun"
        logger.warning(
            "virtual time stands still until a plain function returns, for more than %g s now; perhaps it waits for "
            "another one, and only one moves at a time. It is at\n%s",
            _SAY_AFTER_S,
            stack,
        )


async def _awaited(value: Any) -> Any:
    return await value
