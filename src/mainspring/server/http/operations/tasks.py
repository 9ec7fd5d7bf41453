"""Tasks over HTTP: which there are, their calls, retrying, cancelling and discarding calls.

Calls are as private as the task's topic: who may not subscribe to it sees none of them; what they returned is as
private as the results topic. Retrying and discarding need the rights that sending back and dropping a dead letter need,
cancelling the right to publish to the control topic.
"""

from __future__ import annotations

from typing import Final, get_args

from mainspring.bus import BadFrame, CallFilter, CallState, ChangedCalls, TaskCall, TaskCallPage, TaskInfo
from mainspring.server.http.call import Call
from mainspring.server.http.table import POSITIVE, Operations, Parameter, Schema, described, gives, missing, takes

DEFAULT_LIMIT: Final = 100
MAX_LIMIT: Final = 1_000  # a page is held in memory as a whole

operation: Final = Operations("tasks")

_TASKS: Final = "Every task, by name, and how many calls of it there are in each state."
TaskListing: type = described("TaskListing", _TASKS, tasks=list[TaskInfo])


class CancelBody(CallFilter, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which calls to cancel, and why."""

    reason: str = ""


_ALL: Final[Schema] = {"required": ["all"], "properties": {"all": {"const": True}}}
_SOME: Final[Schema] = {"if": missing("ids", "error", "before", "limit"), "then": _ALL}


@operation("GET /tasks", gives("The tasks, by name.", TaskListing))
async def list_tasks(call: Call) -> dict[str, list[TaskInfo]]:
    """Every task.

    Only those whose topics the caller may read.
    """
    return {"tasks": await call.bus.task_calls.tasks(call.caller)}


@operation(
    "GET /tasks/{task}/calls",
    "The calls.",
    parameters=(
        Parameter("state", "Only calls in this state.", {"type": "string", "enum": list(get_args(CallState))}),
        Parameter("limit", "At most so many.", {**POSITIVE, "maximum": MAX_LIMIT}),
        Parameter("cursor", "The `next` of the page before."),
    ),
    errors=(404,),
)
async def list_task_calls(call: Call) -> TaskCallPage:
    """Calls of a task, newest first.

    Where many calls are in other states a page may have fewer calls than the limit, or none, and still a `next`.
    """
    state = call.request.query.get("state")
    if state is not None and state not in get_args(CallState):
        raise BadFrame(f"{state!r} is not a state", remedy=f"choose from {', '.join(get_args(CallState))}")
    return await call.bus.task_calls.calls(
        _task(call),
        state=state,  # type: ignore[arg-type]
        limit=call.integer("limit", least=1, most=MAX_LIMIT) or DEFAULT_LIMIT,
        cursor=call.request.query.get("cursor", ""),
        who=call.caller,
    )


@operation("GET /tasks/{task}/calls/{call}", "The call.", errors=(404,))
async def show_task_call(call: Call) -> TaskCall:
    """One call of a task."""
    return await call.bus.task_calls.call(_task(call), call.request.match_info["call"], who=call.caller)


@operation(
    "POST /tasks/{task}/retry",
    "How many go back.",
    body=takes(CallFilter, rule=_SOME),
    errors=(404, 409, 503),
)
async def retry_task_calls(call: Call) -> ChangedCalls:
    """Have calls that failed done again.

    Each goes back to the group that gave up on it, with all its attempts.
    """
    await call.bus.task_calls.check_change(_task(call), call.caller)
    return await call.bus.task_calls.retry(_task(call), await call.json(CallFilter), who=call.caller)


@operation(
    "POST /tasks/{task}/cancel", "How many are cancelled.", body=takes(CancelBody, rule=_SOME), errors=(404, 409, 503)
)
async def cancel_task_calls(call: Call) -> ChangedCalls:
    """Cancel calls that are open.

    A call that waits never begins; one that runs is interrupted where it waits.
    """
    await call.bus.task_calls.check_change(_task(call), call.caller, to_cancel=True)
    wanted = await call.json(CancelBody)
    chosen = CallFilter(ids=wanted.ids, error=wanted.error, before=wanted.before, limit=wanted.limit, all=wanted.all)
    return await call.bus.task_calls.cancel(_task(call), chosen, reason=wanted.reason, who=call.caller)


@operation(
    "POST /tasks/{task}/discard", "How many are dropped.", body=takes(CallFilter, rule=_SOME), errors=(404, 409, 503)
)
async def discard_task_calls(call: Call) -> ChangedCalls:
    """Drop calls that failed: nobody will do them any more."""
    await call.bus.task_calls.check_change(_task(call), call.caller)
    return await call.bus.task_calls.discard(_task(call), await call.json(CallFilter), who=call.caller)


def _task(call: Call) -> str:
    return call.request.match_info["task"]
