"""Schedules over HTTP: events to be published again and again, by an interval or a cron expression.

A schedule acts in the name of its author only at that moment: the right to publish to its topic is checked when it
is created, replaced or deleted.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from aiohttp import web

from mainspring.bus import LEAST_EVERY_MS, Schedule, UnknownSchedule
from mainspring.server.http.access import known_topics
from mainspring.server.http.face import Face, json_response
from mainspring.server.http.request import MAX_INTEGER, body_decoder, read_json
from mainspring.server.http.table import Operation, gives, tagged, takes


class ScheduleBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An event to be published `every` so many milliseconds, or as `cron` says (five fields, UTC): one of the two."""

    name: str
    topic: str
    payload: msgspec.Raw
    every: Annotated[int, msgspec.Meta(ge=LEAST_EVERY_MS, le=MAX_INTEGER)] | None = None
    cron: str | None = None
    key: str | None = None
    headers: dict[str, str] | None = None


class ScheduleListing(msgspec.Struct, frozen=True):
    """Every schedule, by name. `nextMs` is when it fires next, in epoch milliseconds."""

    schedules: list[Schedule]


_SCHEDULE: Final = body_decoder(ScheduleBody)


async def list_schedules(face: Face, request: web.Request) -> web.StreamResponse:
    """Every schedule.

    Only those of topics the caller may know of.
    """
    caller = await face.identify(request)
    schedules = face.bus.schedules.all()
    visible = await known_topics(face.bus, caller, {each.topic for each in schedules})
    seen = [each for each in schedules if each.topic in visible]
    return json_response(ScheduleListing(sorted(seen, key=lambda each: each.name)))


async def show_schedule(face: Face, request: web.Request) -> web.StreamResponse:
    """One schedule."""
    schedule = _find(face, request.match_info["schedule"])
    await face.check_visible(request, schedule.topic)
    return json_response(schedule)


async def put_schedule(face: Face, request: web.Request) -> web.StreamResponse:
    """Create or replace a schedule.

    It is durable when the answer comes.
    """
    agent = await face.identify(request)
    given = await read_json(request, face.max_body_bytes, _SCHEDULE)
    for other in face.bus.schedules.all():
        if other.name == given.name:  # replacing one takes it away from its topic
            await face.bus.access.check(other.topic, "publish", agent)
    kept = await face.bus.put_schedule(
        Schedule(
            name=given.name,
            topic=given.topic,
            payload=given.payload.copy(),
            every=given.every,
            cron=given.cron,
            key=given.key,
            headers=given.headers,
        ),
        agent=agent,
    )
    return json_response(kept, status=201)


async def delete_schedule(face: Face, request: web.Request) -> web.StreamResponse:
    """Forget a schedule.

    What it published stays.
    """
    name = request.match_info["schedule"]
    agent = await face.identify(request)
    await face.bus.access.check(_find(face, name).topic, "publish", agent)
    await face.bus.schedules.delete(name)
    return web.Response(status=204)


def _find(face: Face, name: str) -> Schedule:
    for schedule in face.bus.schedules.all():
        if schedule.name == name:
            return schedule
    raise UnknownSchedule(f"there is no schedule {name!r}", remedy="GET /schedules lists the schedules there are")


OPERATIONS: Final = tagged(
    "schedules",
    Operation("GET /schedules", list_schedules, gives("The schedules, by name.", ScheduleListing)),
    Operation(
        "POST /schedules",
        put_schedule,
        gives("The schedule, and when it fires next.", Schedule, status=201),
        body=takes(ScheduleBody),
        errors=(400, 413, 415, 503),
    ),
    Operation("GET /schedules/{schedule}", show_schedule, gives("The schedule.", Schedule), errors=(404,)),
    Operation("DELETE /schedules/{schedule}", delete_schedule, gives("Forgotten.", status=204), errors=(404, 503)),
)
