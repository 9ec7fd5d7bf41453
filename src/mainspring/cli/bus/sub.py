"""`mainspring sub`: consume a topic as a member of a group, on the terminal.

An event is acknowledged after its line was written and flushed, so a reader that goes away loses nothing: what it did
not get is delivered again. With `--no-ack` nothing is acknowledged, and what was shown goes back to the group when the
command ends.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

import typer

from mainspring.cli.support.moments import start_frame
from mainspring.cli.support.node_options import NodeOptions, TopicArgument, complete_group
from mainspring.cli.support.output import event_line, note, on_change, say, say_json
from mainspring.client import Event, connect
from mainspring.loop import MonotonicClock

_WINDOW: Final = 64
_STATES: Final = {
    "open": "mainspring: the node is back",
    "waiting": "mainspring: the node is gone; waiting for it to come back",
}
Start = Literal["latest", "beginning"] | int | datetime | None


def sub(
    topic: TopicArgument,
    group: Annotated[
        str,
        typer.Option(
            "--group", "-g", help="The group to join; members share its events.", autocompletion=complete_group
        ),
    ],
    start: Annotated[
        str | None,
        typer.Option("--from", help="Where a new group begins: latest, beginning, an offset, 10m (ago), a date."),
    ] = None,
    ack: Annotated[bool, typer.Option("--ack/--no-ack", help="Acknowledge what was shown, or give it back.")] = True,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="End after so many events.")] = None,
    window: Annotated[int, typer.Option(min=1, help="Events to hold at once.")] = _WINDOW,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Only events of this key.")] = None,
    *,
    at: NodeOptions,
) -> None:
    """Consume a topic as a member of a group. Shows each event and acknowledges it.

    A group that exists goes on where it was; --from with an offset or a time moves it. Without --from a new group
    begins at the beginning. Goes on until Ctrl-C, or until --count events were shown.

    Examples: `sub orders -g billing`, `sub orders -g billing --from 10m -n 1 --json`.
    """
    begin = _start(start)
    at.get("/healthz")  # says what is wrong at once; the client would try again first

    async def consume() -> None:
        held = min(window, count or window)
        async with (
            connect(at.address, at.sent_token, connect_timeout=3.0, on_state=on_change(note, _STATES)) as bus,
            bus.subscribe(topic, group=group, from_=begin, max_inflight=held, key=key) as events,
        ):
            shown = 0
            async for event in events:
                _show(event, at.as_json)
                if ack:
                    await event.ack()
                shown += 1
                if shown == count:
                    return

    asyncio.run(consume())


def _start(text: str | None) -> Start:
    if text is None or text == "latest" or text == "beginning":
        return text  # type: ignore[return-value]
    place = start_frame(text, MonotonicClock().wall_ms(), "--from")
    value = int(place["value"])
    return value if place["kind"] == "offset" else datetime.fromtimestamp(value / 1000, UTC)


def _show(event: Event[Any], as_json: bool) -> None:
    envelope: dict[str, Any] = {
        "id": event.id,
        "ts": event.ts,
        "topic": event.topic,
        "partition": event.partition,
        "offset": event.offset,
        "payload": event.payload,
    }
    if event.key is not None:
        envelope["key"] = event.key
    if event.headers:
        envelope["headers"] = dict(event.headers)
    if as_json:
        say_json({**envelope, "attempt": event.attempt})
    else:
        say(event_line(envelope, several_topics=False, attempt=event.attempt))
