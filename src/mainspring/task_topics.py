"""The topics behind the tasks of a program, the calls that go there, and the headers of a task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

Priority = Literal["high", "normal", "low"]
PRIORITIES: Final = ("high", "normal", "low")

NAME: Final = "x-task"  # which task it is, on topics that several tasks share
TASK_ID: Final = "x-task-id"  # only where the event's own id is another one: a task that was sent again
RETRY: Final = "x-retry"
TIMEOUT: Final = "x-timeout"
EXPIRES: Final = "x-task-expires"  # epoch ms; unlike an event that expires, the task says that it did

LEASE_MS: Final = 30_000  # how long a task stays with a worker that says nothing; workers extend it
DELIVERIES: Final = 1_000  # by the node; the task's own number of attempts ends it long before
RESULTS_KEPT_MS: Final = 86_400_000
CONTROL_KEPT_MS: Final = 30 * 86_400_000

RESERVED: Final = frozenset({"high", "low", "ordered", "results", "control"})


class NewCall(msgspec.Struct, frozen=True, gc=False):
    """A call on its way to a topic. `not_before` is epoch ms; 0: at once."""

    id: str
    payload: Any
    key: str | None = None
    headers: dict[str, str] | None = None
    delay_ms: int = 0
    not_before: int = 0


@dataclass(frozen=True, slots=True)
class TaskTopics:
    """The topics of one task.

    Calls of the task `send_mail` of the app `shop` are events of `tasks.shop.send_mail`. The tasks of an app share

        tasks.shop.high, tasks.shop.low   calls of another priority
        tasks.shop.ordered                calls with a key, handled in order per key
        tasks.shop.results                what became of calls, by task id; the newest record of each, until it expires
        tasks.shop.control                cancellations, by task id

    A task with a topic of its own choice, `emails`, has `emails.high` and so on. Settings that a topic has already are
    left alone.
    """

    normal: str
    shared: str  # what the names of the others begin with

    @property
    def ordered(self) -> str:
        return f"{self.shared}.ordered"

    @property
    def results(self) -> str:
        return f"{self.shared}.results"

    @property
    def control(self) -> str:
        return f"{self.shared}.control"

    def lanes(self) -> dict[str, Priority]:
        """Topics of calls, and how urgent those are."""
        return {
            f"{self.shared}.high": "high",
            self.normal: "normal",
            self.ordered: "normal",
            f"{self.shared}.low": "low",
        }

    def lane(self, priority: Priority, key: str | None) -> str:
        """Where a call goes."""
        if key is not None:
            return self.ordered
        return self.normal if priority == "normal" else f"{self.shared}.{priority}"

    def settings(self) -> dict[str, dict[str, Any]]:
        """All of them, with the settings they need."""
        calls = {"maxAttempts": DELIVERIES, "ackTimeoutMs": LEASE_MS}
        return {
            **dict.fromkeys(self.lanes(), calls),
            self.results: {"compact": True, "retentionMs": RESULTS_KEPT_MS},
            self.control: {"compact": True, "retentionMs": CONTROL_KEPT_MS},
        }
