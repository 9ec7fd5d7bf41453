"""Messages over HTTP: send the kernel a command or a query, and see which messages passed lately.

`POST /messages` is the kernel's one-line protocol for programs that only speak HTTP, and for the dashboard. The answer
of a handler is the reply message itself. An error is a problem document like every other, with the status the error
message carries and the whole message in its member `error`, so that nothing an NDJSON client would learn is lost.

Where tokens are configured a message needs a scope for its type (`Access.check_message`), and a token is shown the
headers of messages that it may send itself.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Annotated, Any, Final, Literal

import msgspec
from aiohttp import web

from mainspring.json_text import check_json
from mainspring.kernel import HeaderView, Inspector, Kernel
from mainspring.message import MAX_DEPTH, TYPE_SHAPE, Message, Metadata, Retry, encode_line, is_type
from mainspring.server.http.call import Call, json_response
from mainspring.server.http.problem import HttpProblem, ProblemDocument, problem_response
from mainspring.server.http.table import POSITIVE, Operations, Parameter, described, gives, takes
from mainspring.telemetry import tracing

DEFAULT_LIMIT: Final = 100
MAX_LIMIT: Final = 1_000
LONGEST_TIMEOUT_MS: Final = 600_000  # longer than any proxy keeps a silent request open

_WORDS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

operation: Final = Operations("messages")


MessageId = Annotated[str, msgspec.Meta(min_length=1, max_length=1_000)]  # the headers of many messages are kept


class MessageBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to ask. `timeout` is in milliseconds; without it the node's default counts.

    A durable command with an `id` may be sent again when its answer was lost: it is carried out once. `correlation`
    groups messages. With `retry` it is sent again when it fails with an error that may pass.
    """

    kind: Literal["command", "query"]
    type: Annotated[str, msgspec.Meta(extra_json_schema={"pattern": f"^{TYPE_SHAPE.pattern}$"})]
    data: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"{}"))
    timeout: Annotated[float, msgspec.Meta(gt=0, le=LONGEST_TIMEOUT_MS)] | None = None
    id: MessageId | None = None
    correlation: MessageId | None = None
    retry: Retry | None = None


class MessageMetadata(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who a message is and where it comes from; `causation` is the id under which the request can be traced."""

    id: str
    timestamp: int
    correlation: str | None = None
    causation: str | None = None


class MessageReply(msgspec.Struct, frozen=True):
    """The handler's answer, as the message it is."""

    kind: Literal["reply"]
    type: str
    data: msgspec.Raw
    metadata: MessageMetadata


class MessageProblem(ProblemDocument, frozen=True, omit_defaults=True):
    """A problem document that also holds the error message."""

    error: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))


RecentMessages: type = described("RecentMessages", "Headers of messages, newest first.", messages=list[HeaderView])


def kernel_of(call: Call) -> Kernel:
    """The kernel that answers; 503 where there is none, or while it takes nothing new."""
    if call.kernel is None or not call.kernel.running or call.kernel.closing:
        raise HttpProblem("unavailable", "The kernel takes no messages now.", "Try again later.")
    return call.kernel


@operation(
    "POST /messages",
    gives("The reply message.", MessageReply),
    body=takes(MessageBody),
    errors=(404, 409, 422, 503, 504),
)
async def send_message(call: Call) -> web.Response:
    """Send the kernel a command or a query."""
    wanted = await call.json(MessageBody, call.max_event_bytes)
    call.bus.access.check_message(call.caller, wanted.kind, wanted.type)
    check_json(bytes(wanted.data), "the data", levels=MAX_DEPTH)
    if not is_type(wanted.type):
        raise HttpProblem(
            "bad_payload",
            "The type is not a message type.",
            "Write two PascalCase segments, like Memory.Get; `mainspring describe` lists what there is.",
        )
    kernel = kernel_of(call)
    trace = tracing.sent_in(call.request.headers)
    id, now = wanted.id or kernel.ids(), kernel.clock.wall_ms()
    state = tracing.state_of(call.request.headers)
    metadata = Metadata(id, now, wanted.correlation, None, wanted.timeout, trace, state, wanted.retry)
    answer = await kernel.exchange_request(Message(wanted.kind, wanted.type, wanted.data, metadata), call.caller)
    call.bus.audit.answered(call.caller, wanted.kind, wanted.type, answer.data if answer.kind == "error" else None)
    if answer.kind != "reply":
        return problem_of(answer)
    return json_response(kernel.blobs.hide_folder(encode_line(answer)))


def problem_of(error: Message) -> web.Response:
    """An error message as a problem document with the status it carries."""
    data: Any = error.data if isinstance(error.data, dict) else {}
    status = _status(data.get("code"))
    text, remedy = str(data.get("message") or "The request was refused"), str(data.get("remedy") or "")
    details = {"error": msgspec.Raw(encode_line(error))}
    return problem_response(status, _code(error.type), text, remedy, details=details, kind=MessageProblem)


def _status(code: object) -> int:
    """The status a code means. Codes are HTTP's; one that HTTP does not know stands for its class."""
    if not isinstance(code, int) or not 400 <= code <= 599:
        return 500
    try:
        return HTTPStatus(code).value
    except ValueError:
        return 400 if code < 500 else 500


def _code(type: str) -> str:
    """`Sys.RoutingError` is `routing_error`; what a handler refuses under its own type is `refused`."""
    owner, _, name = type.partition(".")
    return _WORDS.sub("_", name).lower() if owner == "Sys" else "refused"


@operation(
    "GET /messages",
    gives("The headers.", RecentMessages),
    parameters=(
        Parameter("text", "Only messages whose type, id or correlation holds this."),
        Parameter("kind", "Only messages of this kind."),
        Parameter("before", "Only messages older than the one with this id."),
        Parameter("limit", f"At most so many; {DEFAULT_LIMIT} by default.", {**POSITIVE, "maximum": MAX_LIMIT}),
    ),
    errors=(503,),
)
async def list_messages(call: Call) -> dict[str, list[HeaderView]]:
    """Headers of the messages that passed lately, newest first."""
    limit = call.integer("limit", least=1, most=MAX_LIMIT) or DEFAULT_LIMIT
    filters = {name: call.request.query.get(name, "") for name in ("text", "kind", "before")}
    found = Inspector(kernel_of(call)).messages(limit=limit, visible=call.visible_messages, **filters)
    return {"messages": found}
