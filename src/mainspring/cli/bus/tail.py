"""`mainspring tail`: look at topics without taking part. No group is made, nothing is acknowledged.

First what is stored (the last few, or everything since a moment), in the order of time over all topics and partitions;
with `--follow` then what comes. Both meet at the tails read before the first event is shown: what is stored up to there
comes from reading, what lies behind from following, so nothing is missed and nothing shown twice. A node that goes away
while following is waited for, and followed on from the same place.
"""

from __future__ import annotations

import heapq
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final

import msgspec
import typer

from mainspring.cli.bus.filters import Envelope, Fits, parse_filter
from mainspring.cli.support.moments import moment_ms
from mainspring.cli.support.node_options import NodeOptions, complete_topic
from mainspring.cli.support.output import event_line, note, safe, say, say_json
from mainspring.client import CannotConnect, NodeConnection, path
from mainspring.errors import MainspringError
from mainspring.loop import MonotonicClock

_PAGE: Final = 500
_LINES: Final = 10
_RETRY_S: Final = 1.0
_QUIET_S: Final = 45.0  # a comment comes every 15 seconds; without one the connection is dead

Tails = dict[int, tuple[int, int]]  # partition -> first and last offset


def tail(
    topics: Annotated[
        list[str], typer.Argument(metavar="TOPIC", help="One or more topics.", autocompletion=complete_topic)
    ],
    filter: Annotated[
        list[str] | None, typer.Option("--filter", help="key=V, header.NAME=V, .path.in.payload=V; all given must fit.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", "-s", help="Everything since: 10m (ago), or a date and time.")
    ] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Without --since: the last so many.")] = _LINES,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Then go on with what comes, until Ctrl-C.")] = False,
    *,
    at: NodeOptions,
) -> None:
    """Look at events without taking part. The last ones, or those since a moment; with --follow what comes, too.

    Examples: `tail -f orders`, `tail orders --filter key=c-17`, `tail orders --filter '.total>=100' -s 10m`.
    """
    filters = [parse_filter(each) for each in filter or ()]
    since_ms = None if since is None else moment_ms(since, MonotonicClock().wall_ms(), "--since")
    names = list(dict.fromkeys(topics))

    def fits(envelope: Envelope) -> bool:
        return all(each(envelope) for each in filters)

    def show(envelope: Envelope) -> None:
        if at.as_json:
            say_json(envelope)
        else:
            say(event_line(envelope, several_topics=len(names) > 1))

    with at.connect() as connection:
        tails = {topic: _tails(connection, topic) for topic in names}
        if since_ms is not None:
            stored = _since(connection, tails, since_ms, fits)
        else:
            stored = iter(_last(connection, tails, lines, fits, _PAGE if filters else lines))
        for envelope in stored:
            show(envelope)
    if follow:
        _follow(at, tails, fits, show)


# -- what is stored


def _tails(connection: NodeConnection, topic: str) -> Tails:
    found = connection.get(path("topics", topic, "offsets"))["partitions"]
    return {each["partition"]: (each["head"], each["tail"]) for each in found}


def _order(envelope: Envelope) -> tuple[int, str, int, int]:
    return envelope["ts"], envelope["topic"], envelope["partition"], envelope["offset"]


def _since(connection: NodeConnection, tails: dict[str, Tails], from_ms: int, fits: Fits) -> Iterator[Envelope]:
    readers = [
        _read(connection, topic, partition, last, {"from": from_ms})
        for topic, partitions in tails.items()
        for partition, (_, last) in partitions.items()
        if last
    ]
    return filter(fits, heapq.merge(*readers, key=_order))


def _read(
    connection: NodeConnection, topic: str, partition: int, last: int, start: dict[str, str | int]
) -> Iterator[Envelope]:
    """One partition up to offset `last`, a page at a time."""
    where = path("topics", topic, "events")
    params: dict[str, str | int | None] = {**start, "partition": partition, "limit": _PAGE}
    while True:
        answer = connection.get(where, **params)
        page, damaged = answer["events"], answer.get("damaged", [])
        for each in damaged:
            if each["offset"] <= last:
                _say_damaged(each)
        for envelope in page:
            if envelope["offset"] > last:
                return
            yield envelope
        if len(page) + len(damaged) < _PAGE:
            return
        reached = max(each["offset"] for each in (*page, *damaged))
        params = {"offset": reached + 1, "partition": partition, "limit": _PAGE}


def _say_damaged(place: dict[str, Any]) -> None:
    note(f"mainspring: {safe(place['message'])}")


def _last(connection: NodeConnection, tails: dict[str, Tails], count: int, fits: Fits, step: int) -> list[Envelope]:
    """The last `count` of each topic that fit, by time. Pages of `step` are read backwards until there are enough."""
    found: list[Envelope] = []
    for topic, partitions in tails.items() if count else ():
        of_topic: list[Envelope] = []
        for partition, (first, last) in partitions.items():
            of_partition: list[Envelope] = []
            while last >= max(first, 1) and len(of_partition) < count:
                begin = max(first, last - min(step, _PAGE) + 1, 1)
                page = _read(connection, topic, partition, last, {"offset": begin})
                of_partition = [*filter(fits, page), *of_partition]
                last = begin - 1
            of_topic += of_partition[-count:]
        found += sorted(of_topic, key=_order)[-count:]
    return sorted(found, key=_order)


# -- what comes


def _follow(at: NodeOptions, tails: dict[str, Tails], fits: Fits, show: Callable[[Envelope], None]) -> None:
    """One thread per topic reads, this one shows: an event of a slow topic does not wait for a busy one."""
    arrived: queue.Queue[Envelope | MainspringError] = queue.Queue(maxsize=1_000)
    for topic, partitions in tails.items():
        cursor = ",".join(f"{partition}:{last}" for partition, (_, last) in partitions.items())
        threading.Thread(target=_follow_one, args=(at, topic, cursor, arrived), daemon=True).start()
    while True:
        item = arrived.get()
        if isinstance(item, MainspringError):
            raise item
        if fits(item):
            show(item)


def _follow_one(at: NodeOptions, topic: str, cursor: str, arrived: queue.Queue[Envelope | MainspringError]) -> None:
    gone = False
    pause = threading.Event()
    while True:
        try:
            with (
                at.connect(_QUIET_S) as connection,
                connection.lines(path("topics", topic, "stream"), params={"cursor": cursor}) as lines,
            ):
                for came, envelope in _messages(lines):
                    if gone:
                        note(f"mainspring: {safe(topic)} goes on")
                        gone = False
                    cursor = came
                    if envelope is not None:
                        arrived.put(envelope)
        except CannotConnect as error:
            if not gone:
                note(f"mainspring: {error.message}; waiting for it to come back")
            gone = True
        except MainspringError as error:
            arrived.put(error)
            return
        pause.wait(_RETRY_S)


def _messages(lines: Iterator[bytes]) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Server-sent events: each with the cursor behind it; the first has only a cursor."""
    cursor, kind, data = "", b"", b""
    for line in lines:
        text = line.rstrip(b"\r\n")
        if text.startswith(b"id: "):
            cursor = text[4:].decode()
        elif text.startswith(b"data: "):
            data += text[6:]
        elif text.startswith(b"event: "):
            kind = text[7:]
        elif not text and (cursor or data):
            found = msgspec.json.decode(data) if data else None
            if found is not None and kind == b"damaged":
                _say_damaged(found)
                found = None
            yield cursor, found
            kind, data = b"", b""
