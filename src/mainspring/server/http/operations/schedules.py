"""Schedules over HTTP: events to be published again and again, by an interval or a cron expression.

A schedule acts in the name of its author only at that moment: the right to publish to its topic is checked when it
is created, replaced or deleted.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from aiohttp import web

from mainspring.bus import LEAST_EVERY_MS, Schedule, UnknownSchedule
from mainspring.server.http.call import MAX_INTEGER, Call, json_response
from mainspring.server.http.table import Operations, described, gives, takes

operation: Final = Operations("schedules")


class ScheduleBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An event to be published `every` so many milliseconds, or as `cron` says (five fields, UTC): one of the two."""

    name: str
    topic: str
    payload: msgspec.Raw
    every: Annotated[int, msgspec.Meta(ge=LEAST_EVERY_MS, le=MAX_INTEGER)] | None = None
    cron: str | None = None
    key: str | None = None
    headers: dict[str, str] | None = None


_LISTING: Final = "Every schedule, by name. `nextMs` is when it fires next, in epoch milliseconds."
ScheduleListing: type = described("ScheduleListing", _LISTING, schedules=list[Schedule])


@operation("GET /schedules", gives("The schedules, by name.", ScheduleListing))
async def list_schedules(call: Call) -> dict[str, list[Schedule]]:
    """Every schedule.

    Only those of topics the caller may know of.
    """
    schedules = call.bus.schedules.all()
    visible = await call.visible({each.topic for each in schedules})
    seen = [each for each in schedules if each.topic in visible]
    return {"schedules": sorted(seen, key=lambda each: each.name)}


@operation(
    "POST /schedules",
    gives("The schedule, and when it fires next.", Schedule, status=201),
    body=takes(ScheduleBody),
    errors=(503,),
)
async def put_schedule(call: Call) -> web.Response:
    """Create or replace a schedule.

    It is durable when the answer comes.
    """
    given = await call.json(ScheduleBody)
    for other in call.bus.schedules.all():
        if other.name == given.name:  # replacing one takes it away from its topic
            await call.check("publish", other.topic)
    members = msgspec.structs.asdict(given) | {"payload": given.payload.copy()}
    return json_response(await call.bus.put_schedule(Schedule(**members), agent=call.caller), status=201)


@operation("GET /schedules/{schedule}", "The schedule.", errors=(404,))
async def show_schedule(call: Call) -> Schedule:
    """One schedule."""
    schedule = _find(call)
    await call.check_visible(schedule.topic)
    return schedule


@operation("DELETE /schedules/{schedule}", gives("Forgotten.", status=204), errors=(404, 503))
async def delete_schedule(call: Call) -> web.Response:
    """Forget a schedule.

    What it published stays.
    """
    schedule = _find(call)
    await call.check("publish", schedule.topic)
    await call.bus.schedules.delete(schedule.name)
    return web.Response(status=204)


def _find(call: Call) -> Schedule:
    name = call.request.match_info["schedule"]
    for schedule in call.bus.schedules.all():
        if schedule.name == name:
            return schedule
    raise UnknownSchedule(f"there is no schedule {name!r}", remedy="GET /schedules lists the schedules there are")
