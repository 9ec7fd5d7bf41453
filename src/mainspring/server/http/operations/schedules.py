"""Schedules over HTTP: events to be published again and again, by an interval or a cron expression.

The right to publish to its topic is checked when a schedule is created, changed or deleted, and its owner's each time
it fires: one whose owner may not any more is paused, until somebody resumes it who may.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from aiohttp import web

from mainspring.bus import LEAST_EVERY_MS, Caller, Forbidden, Name, Overlap, Published, Schedule, ScheduleInfo
from mainspring.server.http.call import MAX_INTEGER, Call, json_response
from mainspring.server.http.table import Operations, Schema, described, given, gives, missing, takes

operation: Final = Operations("schedules")


class ScheduleBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An event to be published `every` so many milliseconds, or as `cron` says (five fields): one of the two.

    A cron line is in `timezone` (UTC unless given). Each event is late by up to `jitter` milliseconds, always the same
    for one name and time. With `overlap` skip, nothing is published while a group of the topic has events to settle.
    """

    name: Name
    topic: Name
    payload: msgspec.Raw
    every: Annotated[int, msgspec.Meta(ge=LEAST_EVERY_MS, le=MAX_INTEGER)] | None = None
    cron: str | None = None
    timezone: str | None = None
    jitter: Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)] = 0
    overlap: Overlap = "queue"
    key: str | None = None
    headers: dict[str, str] | None = None


_EITHER: Final[Schema] = {"if": missing("every"), "then": given("cron"), "else": missing("cron")}
_LISTING: Final = (
    "Every schedule, by name. `nextMs` is when it fires next and `lastMs` when it fired last, in epoch milliseconds. "
    "`last` is how the last call of a program's function went: done, failed or skipped, when, for how long, and why."
)
ScheduleListing: type = described("ScheduleListing", _LISTING, schedules=list[ScheduleInfo])


@operation("GET /schedules", gives("The schedules, by name.", ScheduleListing))
async def list_schedules(call: Call) -> dict[str, list[ScheduleInfo]]:
    """Every schedule.

    Only those of topics the caller may know of.
    """
    schedules = call.bus.schedules.all()
    visible = await call.visible({each.topic for each in schedules})
    seen = [each for each in schedules if each.topic in visible]
    return {"schedules": seen}


@operation(
    "POST /schedules",
    gives("The schedule, and when it fires next.", Schedule, status=201),
    body=takes(ScheduleBody, rule=_EITHER),
    errors=(422, 503),
)
async def put_schedule(call: Call) -> web.Response:
    """Create or replace a schedule.

    It is durable when the answer comes. One that is paused stays paused.
    """
    if isinstance(call.caller, Caller) and call.caller.scopes is not None and not call.caller.scopes.any_of("publish"):
        raise Forbidden("this token may not publish to any topic", remedy="use one with a scope like publish:orders.*")
    given = await call.json(ScheduleBody)
    members = msgspec.structs.asdict(given) | {"payload": given.payload.copy()}
    return json_response(await call.bus.put_schedule(Schedule(**members), agent=call.caller), status=201)


@operation("GET /schedules/{schedule}", "The schedule.", errors=(404,))
async def show_schedule(call: Call) -> ScheduleInfo:
    """One schedule."""
    return await call.bus.check_schedule(call.request.match_info["schedule"], call.caller, None)


@operation("DELETE /schedules/{schedule}", gives("Deleted.", status=204), errors=(404, 503))
async def delete_schedule(call: Call) -> web.Response:
    """Delete a schedule.

    What it published stays. One that a program declares (`declared`) comes back when a node of the program starts:
    pause it instead.
    """
    name = await _changeable(call)
    await call.bus.schedules.delete(name)
    call.audit("deleted", f"schedule {name}")
    return web.Response(status=204)


@operation("POST /schedules/{schedule}/pause", "The schedule.", errors=(404, 503))
async def pause_schedule(call: Call) -> ScheduleInfo:
    """Pause a schedule.

    It publishes nothing until it is resumed, also after a restart of the node or of the program that declares it.
    """
    paused = await call.bus.schedules.pause(await _changeable(call))
    call.audit("changed", f"schedule {paused.name} paused", topic=paused.topic)
    return paused


@operation("POST /schedules/{schedule}/resume", "The schedule, and when it fires next.", errors=(404, 503))
async def resume_schedule(call: Call) -> ScheduleInfo:
    """Resume a schedule.

    It goes on from now: what it missed is not made up.
    """
    resumed = await call.bus.resume_schedule(call.request.match_info["schedule"], agent=call.caller)
    call.audit("changed", f"schedule {resumed.name} resumed", topic=resumed.topic)
    return resumed


@operation("POST /schedules/{schedule}/run", "Where the event is.", errors=(404, 422, 503))
async def run_schedule(call: Call) -> Published:
    """Publish a schedule's event now.

    Also while it is paused, and whatever its `overlap` is. Its next time stays.
    """
    name = await _changeable(call)
    event = await call.bus.schedules.run(name)
    call.audit("changed", f"schedule {name} run", topic=event.topic)
    return event


async def _changeable(call: Call) -> str:
    """The schedule's name, where the caller may publish to its topic."""
    return (await call.bus.check_schedule(call.request.match_info["schedule"], call.caller)).name
