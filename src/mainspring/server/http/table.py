"""The vocabulary of the table of operations: one `Operation` is one thing a client can do over HTTP.

An operation is written once, next to its handler, and used twice: `routes.py` routes by it, `openapi.py` describes it.
There is no second list that could forget a route, and no route that could miss its description.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from mainspring.server.http.call import JSON, Call

NDJSON: Final = "application/x-ndjson"
EVENT_STREAM: Final = "text/event-stream"

Schema = dict[str, Any]
Model = type | tuple[type, ...] | Schema
NATURAL: Final[Schema] = {"type": "integer", "minimum": 0}
POSITIVE: Final[Schema] = {"type": "integer", "minimum": 1}


class OperationHandler(Protocol):
    """An async function. What it returns is the answer, or plain data or a Struct that is answered as JSON."""

    __name__: str

    def __call__(self, call: Call, /) -> Awaitable[Any]: ...


@dataclass(frozen=True, slots=True)
class Parameter:
    """A query parameter or header. Path parameters are described once, in `PATH_PARAMETERS`."""

    name: str
    description: str
    schema: Schema = field(default_factory=lambda: {"type": "string"})
    place: str = "query"
    required: bool = False


@dataclass(frozen=True, slots=True)
class BodyContent:
    """What a body may be: a media type, and what it holds: a Struct, one of several, or a schema."""

    media_type: str
    model: Model

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


def gives(description: str, *contents: BodyContent | Model, status: int = 200) -> tuple[Success, ...]:
    """One success. What is not a BodyContent is what a JSON body holds."""
    return (Success(status, description, takes(*contents)),)


def takes(*contents: BodyContent | Model) -> tuple[BodyContent, ...]:
    """What a body may be. What is not a BodyContent is what a JSON body holds."""
    return tuple(each if isinstance(each, BodyContent) else BodyContent(JSON, each) for each in contents)


@dataclass(frozen=True, slots=True)
class Operation:
    """One method on one path, like `GET /topics/{topic}`. `errors` are the statuses it can refuse with.

    Its name and its summary are the handler's: `show_topic` is `showTopic`, and the summary the docstring's first line.
    """

    route: str
    handler: OperationHandler
    answers: tuple[Success, ...]
    parameters: tuple[Parameter, ...] = ()
    body: tuple[BodyContent, ...] = ()
    body_required: bool = True
    errors: tuple[int, ...] = ()
    needs_token: bool = True  # on a node that has tokens
    lasts: bool = False  # the answer goes on until one side ends it
    tag: str = ""  # what it is about; see `tagged`

    @property
    def method(self) -> str:
        return self.route.partition(" ")[0]

    @property
    def path(self) -> str:
        """An OpenAPI template."""
        return self.route.partition(" ")[2]

    @property
    def name(self) -> str:
        first, *others = self.handler.__name__.split("_")
        return first + "".join(word.capitalize() for word in others)

    @property
    def summary(self) -> str:
        return (self.handler.__doc__ or "").partition("\n")[0].rstrip(".")


def tagged(tag: str, *operations: Operation) -> tuple[Operation, ...]:
    """The operations of one module: all of them are about one thing."""
    return tuple(replace(operation, tag=tag) for operation in operations)


@dataclass(frozen=True, slots=True)
class PathParameter:
    """A piece of a path: what it may match there, and what it means."""

    pattern: str
    description: str
    schema: Schema


# A name may hold slashes; percent-encoded they are never ambiguous. Below /topics plain ones are understood too: there
# every path that goes on after the topic is looked at first.
PATH_PARAMETERS: Final[dict[str, PathParameter]] = {
    "topic": PathParameter(
        "[^/]+", "A topic's name. Percent-encode it: `a/b` is `a%2Fb`.", {"type": "string", "maxLength": 255}
    ),
    "group": PathParameter(
        "[^/]+", "A group's name, percent-encoded: `a/b` is `a%2Fb`.", {"type": "string", "maxLength": 255}
    ),
    "schedule": PathParameter("[^/]+", "A schedule's name, percent-encoded.", {"type": "string", "maxLength": 255}),
    "version": PathParameter(r"\d+", "A version of the topic's schema.", {"type": "integer", "minimum": 1}),
    "partition": PathParameter(r"\d+", "A partition of the topic.", {"type": "integer", "minimum": 0}),
    "offset": PathParameter(r"\d+", "An offset in the partition.", {"type": "integer", "minimum": 1}),
}
