"""What the built-in capabilities share: how their messages are declared, errors as answers, answers that fit a line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, get_type_hints

import msgspec

from mainspring.errors import MainspringError
from mainspring.kernel import Capability, Context, Handler, refusal

F = TypeVar("F", bound=Callable[..., Any])

if TYPE_CHECKING:
    from mainspring.bus import Caller

ANSWER_BYTES: Final = 13_000  # of a line of 16384: the rest is envelope


class Empty(msgspec.Struct):
    """No input."""


def about(text: str) -> msgspec.Meta:
    """The description of a member, as `Syscall.Describe` shows it."""
    return msgspec.Meta(description=text)


class Messages:
    """The messages of one built-in capability, each declared by the function that answers it.

    A function takes the part of the node that it asks, then `ctx` if it needs the context, then the members of the
    message's data. Errors of that part become refusals, with the status of their code.
    """

    def __init__(
        self,
        capability: str,
        description: str,
        *,
        concurrency: int = 1,
        key: Callable[[Any], Any] | None = None,
    ) -> None:
        """`concurrency` messages are answered at a time; of those with the same `key`, one."""
        self._capability = Capability(capability, description, concurrency=concurrency)
        self._key = key
        self._declared: list[tuple[Handler, bool, Callable[[Any], Any] | None]] = []  # with: whether it takes `ctx`

    def __call__(
        self, kind: Literal["command", "query"], type: str, input: str = "", gives: str = ""
    ) -> Callable[[F], F]:
        """Declare a message. `input` names the schema of its data, if that has members.

        `gives="Name.member"` is for an answer with one member: the function returns that member alone.
        """

        def declare(function: F) -> F:
            hints = get_type_hints(function, include_extras=True)
            parameters = inspect.signature(function).parameters
            members = [
                (name, hints[name], msgspec.NODEFAULT if each.default is each.empty else each.default)
                for name, each in list(parameters.items())[1:]
                if name != "ctx"
            ]
            data = msgspec.defstruct(input, members) if members else Empty
            output = hints["return"]
            if gives:
                name, _, member = gives.partition(".")
                output = msgspec.defstruct(name, [(member, output)])
            handler = Handler(kind, type, function, inspect.getdoc(function) or "", data, output, key=self._key)
            self._declared.append((handler, "ctx" in parameters, output if gives else None))
            return function

        return declare

    def of(self, part: Any) -> Capability:
        """The capability of a node with this part."""
        handlers = [
            replace(each, function=_answering(each.function, part, takes_context, made))
            for each, takes_context, made in self._declared
        ]
        return replace(self._capability, handlers=handlers)


def _answering(
    function: Callable[..., Any], part: Any, takes_context: bool, made: Callable[[Any], Any] | None
) -> Callable[..., Any]:
    async def answer(data: Any, ctx: Context) -> Any:
        members = msgspec.structs.asdict(data)
        if takes_context:
            members["ctx"] = ctx
        try:
            result = function(part, **members)
            if inspect.isawaitable(result):
                result = await result
            return result if made is None else made(result)
        except MainspringError as error:
            raise refusal(error) from None

    return answer


def caller_of(ctx: Context) -> Caller | None:
    """Who asks from outside; None for the node's own program, and for a socket that belongs to the node's user."""
    caller: Caller | None = getattr(ctx.origin, "caller", None)
    return caller


def is_passed_on(ctx: Context) -> bool:
    """Whether another node passed this message on; then it is answered here or not at all."""
    return bool(getattr(ctx.origin, "passed_on", False))


def fitting(items: list[Any], most_bytes: int = ANSWER_BYTES) -> list[Any]:
    """As many of the items, from the first one on, as fit one answer."""
    size = 0
    for index, item in enumerate(items):
        size += len(msgspec.json.encode(item)) + 1
        if size > most_bytes:
            return items[:index]
    return items
