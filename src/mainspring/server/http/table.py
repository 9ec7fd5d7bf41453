"""The vocabulary of the route table: one `Operation` is one thing a client can do over HTTP.

An operation is written once, next to its handler, and used twice: `routes.py` routes by it, `openapi.py` describes
it. There is no second list that could forget a route, and no route that could miss its description.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from aiohttp import web

from mainspring.server.http.face import Face

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
EVENT_STREAM: Final = "text/event-stream"

Schema = dict[str, Any]
OperationHandler = Callable[[Face, web.Request], Awaitable[web.StreamResponse]]


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
    model: type | tuple[type, ...] | Schema

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


@dataclass(frozen=True, slots=True)
class Operation:
    """One method on one path. `path` is an OpenAPI template; `errors` are the statuses it can refuse with."""

    method: str
    path: str
    name: str
    summary: str
    handler: OperationHandler
    answers: tuple[Success, ...]
    parameters: tuple[Parameter, ...] = ()
    body: tuple[BodyContent, ...] = ()
    body_required: bool = True
    errors: tuple[int, ...] = ()
    needs_token: bool = True  # on a node that has tokens
    lasts: bool = False  # the answer goes on until one side ends it
    tag: str = ""  # what it is about; see `tagged`


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
