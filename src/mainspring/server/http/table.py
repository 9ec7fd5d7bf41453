"""The vocabulary of the table of operations: one `Operation` is one thing a client can do over HTTP.

An operation is written once, above its handler, and used twice: `routes.py` routes by it, `openapi.py` describes it.
There is no second list that could forget a route, and no route that could miss its description.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar, get_type_hints

import msgspec

from mainspring.bus import NAME_SHAPE
from mainspring.server.http.call import JSON, MAX_INTEGER, Call

NDJSON: Final = "application/x-ndjson"
EVENT_STREAM: Final = "text/event-stream"

Schema = dict[str, Any]
Model = type | tuple[type, ...] | Schema
NATURAL: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": MAX_INTEGER}
POSITIVE: Final[Schema] = {"type": "integer", "minimum": 1, "maximum": MAX_INTEGER}
NAME: Final[Schema] = {"type": "string", **NAME_SHAPE}
_ID: Final[Schema] = {"type": "string", "minLength": 1}


class OperationHandler(Protocol):
    """An async function. What it returns is the answer, or plain data or a Struct that is answered as JSON."""

    __name__: str

    def __call__(self, call: Call, /) -> Awaitable[Any]: ...


H = TypeVar("H", bound=OperationHandler)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A query parameter or header, or a piece of a path."""

    name: str
    description: str
    schema: Schema = field(default_factory=lambda: {"type": "string"})
    place: str = "query"

    @property
    def pattern(self) -> str:
        """What it matches in a path."""
        return r"\d+" if self.schema["type"] == "integer" else "[^/]+"


# A name may hold slashes; percent-encoded they are never ambiguous. Below /topics plain ones are understood too: there
# every path that goes on after the topic is looked at first.
PATH_PARAMETERS: Final = {
    each.name: each
    for each in (
        Parameter("topic", "A topic's name. Percent-encode it: `a/b` is `a%2Fb`.", NAME, "path"),
        Parameter("group", "A group's name, percent-encoded: `a/b` is `a%2Fb`.", NAME, "path"),
        Parameter("schedule", "A schedule's name, percent-encoded.", NAME, "path"),
        Parameter(
            "task",
            "A task's name: `shop.send_mail`, or `send_mail` where that is clear.",
            {"type": "string", "minLength": 1},
            "path",
        ),
        Parameter("call", "The id of a call, percent-encoded.", _ID, "path"),
        Parameter("version", "A version of the topic's schema.", POSITIVE, "path"),
        Parameter("partition", "A partition of the topic.", NATURAL, "path"),
        Parameter("offset", "An offset in the partition.", POSITIVE, "path"),
    )
}


@dataclass(frozen=True, slots=True)
class BodyContent:
    """What a body may be: a media type, and what it holds: a Struct, one of several, or a schema.

    `rule` is what its members demand of each other: `if`, `then` and `else`, which generators of clients pass over.
    Alternatives at the top of an object would be types of their own to them.
    """

    media_type: str
    model: Model
    rule: Schema = field(default_factory=dict)

    @property
    def models(self) -> tuple[type, ...]:
        if isinstance(self.model, dict):
            return ()
        return self.model if isinstance(self.model, tuple) else (self.model,)


@dataclass(frozen=True, slots=True)
class Success:
    """One way an operation succeeds."""

    status: int
    description: str
    contents: tuple[BodyContent, ...] = ()


def gives(description: str, *contents: BodyContent | Model, status: int = 200) -> Success:
    """One success. What is not a BodyContent is what a JSON body holds."""
    return Success(status, description, takes(*contents))


def takes(*contents: BodyContent | Model, rule: Schema | None = None) -> tuple[BodyContent, ...]:
    """What a body may be. What is not a BodyContent is what a JSON body holds."""
    return tuple(each if isinstance(each, BodyContent) else BodyContent(JSON, each, rule or {}) for each in contents)


def missing(*names: str) -> Schema:
    """An object in which each of these is absent or null."""
    return {"properties": {name: {"type": "null"} for name in names}}


def given(name: str) -> Schema:
    """An object in which this is neither absent nor null."""
    return {"required": [name], "properties": {name: {"not": {"type": "null"}}}}


def described(name: str, text: str, **members: Any) -> type:
    """A type for the document alone: what is sent is plain data with these members."""
    return msgspec.defstruct(name, list(members.items()), namespace={"__doc__": text})


@dataclass(frozen=True, slots=True)
class Operation:
    """One method on one path, like `GET /topics/{topic}`.

    Its name and its summary are the handler's: `show_topic` is `showTopic`, and the summary the docstring's first line.
    """

    route: str
    handler: OperationHandler
    answers: tuple[Success, ...]
    tag: str  # what it is about
    parameters: tuple[Parameter, ...] = ()
    body: tuple[BodyContent, ...] = ()
    body_required: bool = True
    errors: tuple[int, ...] = ()  # statuses it can refuse with, besides those of `refusals`
    needs_token: bool = True  # on a node that has tokens
    lasts: bool = False  # the answer goes on until one side ends it

    @property
    def method(self) -> str:
        return self.route.partition(" ")[0]

    @property
    def path(self) -> str:
        """An OpenAPI template."""
        return self.route.partition(" ")[2]

    @property
    def contents(self) -> list[BodyContent]:
        """What its bodies may be, the request's and the answers'."""
        return [*self.body, *(content for answer in self.answers for content in answer.contents)]

    @property
    def all_parameters(self) -> list[Parameter]:
        """Those of the path, and the others."""
        return [*(PATH_PARAMETERS[name] for name in re.findall(r"\{(\w+)\}", self.path)), *self.parameters]

    @property
    def refusals(self) -> list[int]:
        """Every status it can refuse with: its own, and what a body, a parameter or any request may be refused with."""
        of_input = (400, 408, 413, 415) if self.body else (400,) if self.all_parameters else ()
        return sorted({*self.errors, *of_input, 401, 403, 429, 500})

    @property
    def name(self) -> str:
        first, *others = self.handler.__name__.split("_")
        return first + "".join(word.capitalize() for word in others)

    @property
    def summary(self) -> str:
        return (self.handler.__doc__ or "").partition("\n")[0].rstrip(".")


class Operations(list[Operation]):
    """The operations about one thing, in the order in which they are declared."""

    def __init__(self, tag: str) -> None:
        super().__init__()
        self._tag = tag

    def __call__(self, route: str, *answers: str | Success, **options: Any) -> Callable[[H], H]:
        """Declare the operation that a handler does. A text describes an answer of the type that it returns."""

        def declare(handler: H) -> H:
            ways = [
                each if isinstance(each, Success) else gives(each, get_type_hints(handler)["return"])
                for each in answers
            ]
            self.append(Operation(route, handler, tuple(ways), self._tag, **options))
            return handler

        return declare
