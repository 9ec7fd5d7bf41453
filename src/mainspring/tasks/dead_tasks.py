"""Dead letters of a queue: tasks that failed for good, sending them again, and dropping them.

The node buries an event when its topic's attempts are used up. A task has a policy of its own, so its worker does it:
the letter is written to `<topic>.DLQ` in the node's form, and only when it is durable is the task acknowledged. Its id
is made from the task's, so a worker that dies in between leaves one letter, not two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from mainspring.client import Event, NodeRefused
from mainspring.tasks.queue_topics import NAME, TASK_ID, Layout

if TYPE_CHECKING:
    from mainspring.client import Client


REDRIVEN: Final = "x-redriven"  # of a task that was sent again: where its letter was


@dataclass(frozen=True, slots=True)
class DeadTask:
    """A task that failed for good. `topic` and `offset` say where its letter lies."""

    id: str
    name: str
    payload: Any
    key: str | None
    reason: str
    attempts: int
    topic: str
    offset: int


def letter_headers(event: Event[Any], task_id: str, reason: str) -> dict[str, str]:
    """The headers of a dead letter: the task's own, and its story."""
    return {
        **event.headers,
        TASK_ID: task_id,
        "x-original-topic": event.topic,
        "x-original-partition": str(event.partition),
        "x-original-offset": str(event.offset),
        "x-original-id": event.id,
        "x-original-ts": str(event.ts),
        "x-group": event.group,
        "x-attempts": str(event.attempt),
        "x-reason": reason[:1_000],
    }


async def dead_tasks(bus: Client, layout: Layout, limit: int) -> list[DeadTask]:
    """Dead letters of all lanes, the oldest first."""
    found = await asyncio.gather(*(_letters(bus, topic, limit) for topic in layout.lanes))
    return [task for lane in found for task in lane][:limit]


async def _letters(bus: Client, topic: str, limit: int) -> list[DeadTask]:
    tasks: list[DeadTask] = []
    offset = 1
    while len(tasks) < limit:
        try:
            page = await bus.http.call(
                "GET", f"/dlq/{quote(topic, safe='')}", params={"offset": str(offset), "limit": "1000"}
            )
        except NodeRefused as error:
            if error.code == "unknown_topic":
                break
            raise
        tasks += [_task(topic, letter) for letter in page["letters"]]
        if "next" not in page:
            break
        offset = page["next"]
    return tasks


def _task(topic: str, letter: dict[str, Any]) -> DeadTask:
    headers = letter["headers"]
    return DeadTask(
        id=headers.get(TASK_ID) or letter["id"],
        name=headers.get(NAME, ""),
        payload=letter["payload"],
        key=letter.get("key"),
        reason=letter["reason"],
        attempts=letter["attempts"],
        topic=topic,
        offset=letter["offset"],
    )


async def redrive(bus: Client, layout: Layout, tasks: list[DeadTask] | None) -> int:
    """Send these dead tasks again, or all; how many. Each moves in one step of the node."""
    return sum([await bus.redrive(topic, offsets=offsets) for topic, offsets in await _places(bus, layout, tasks)])


async def drop(bus: Client, layout: Layout, tasks: list[DeadTask] | None) -> int:
    """Forget these dead tasks, or all; how many."""
    chosen = await _places(bus, layout, tasks)
    return sum([await bus.drop_dead_letters(topic, offsets=offsets) for topic, offsets in chosen])


async def _places(bus: Client, layout: Layout, tasks: list[DeadTask] | None) -> Iterable[tuple[str, list[int]]]:
    by_topic: dict[str, list[int]] = {}
    for task in await dead_tasks(bus, layout, limit=1_000_000) if tasks is None else tasks:
        by_topic.setdefault(task.topic, []).append(task.offset)
    return by_topic.items()
