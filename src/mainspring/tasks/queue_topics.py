"""The topics behind a queue, and the headers of a task."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import quote

from mainspring.client import NodeRefused

if TYPE_CHECKING:
    from mainspring.client import Client

Priority = Literal["high", "normal", "low"]

NAME: Final = "x-task"
TASK_ID: Final = "x-task-id"  # only where the event's own id is another one: a task that was sent again
RETRY: Final = "x-retry"
TIMEOUT: Final = "x-timeout"

DELIVERIES: Final = 1_000  # by the node; the task's own policy ends it long before
CONTROL_KEPT_MS: Final = 30 * 86_400_000


class Layout:
    """The topics behind one queue.

    A queue `emails` is a topic `emails`: an event there is a task, its payload is the task's payload, and nothing is
    wrapped around it, so any publisher can enqueue. Beside it lie

        emails.high, emails.low   tasks of another priority
        emails.ordered            tasks with a key, handled in order per key
        emails.results            what became of tasks, by task id; the newest record of each stays until it expires
        emails.control            cancellations, by task id
        <each>.DLQ                dead letters

    They are created with their settings when a queue is first used; settings that exist are left alone, except that
    topics of tasks must let a task be delivered as often as its own policy says.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.normal = name
        self.high: str = f"{name}.high"
        self.low: str = f"{name}.low"
        self.ordered: str = f"{name}.ordered"
        self.results: str = f"{name}.results"
        self.control: str = f"{name}.control"

    @property
    def lanes(self) -> tuple[str, ...]:
        """Topics of tasks, the most urgent first."""
        return (self.high, self.normal, self.ordered, self.low)

    def lane(self, priority: Priority, key: str | None) -> str:
        if key is not None:
            return self.ordered
        return {"high": self.high, "normal": self.normal, "low": self.low}[priority]


async def ensure_topics(bus: Client, layout: Layout, lease_ms: int, result_ms: int) -> None:
    """Create what is missing."""
    await asyncio.gather(
        *(_ensure(bus, topic, {"maxAttempts": DELIVERIES, "ackTimeoutMs": lease_ms}) for topic in layout.lanes),
        _ensure(bus, layout.results, {"compact": True, "retentionMs": result_ms}),
        _ensure(bus, layout.control, {"compact": True, "retentionMs": CONTROL_KEPT_MS}),
    )


async def _ensure(bus: Client, topic: str, wanted: dict[str, Any]) -> None:
    """Settings the topic has win; what it says nothing about is set."""
    try:
        found = await bus.http.call("GET", f"/topics/{quote(topic, safe='')}")
    except NodeRefused as error:
        if error.code != "unknown_topic":
            raise
        found = {"topic": topic}
    settings = {**wanted, **found}
    if settings != found:
        await bus.put_topic(settings.pop("topic"), **settings)
