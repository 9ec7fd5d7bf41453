"""What a running task knows about itself, and how it reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class TaskContext:
    """Handed to a task that takes two arguments."""

    __slots__ = ("_report", "attempt", "cancelled", "enqueued_ms", "headers", "id", "key", "name")

    def __init__(
        self,
        *,
        id: str,
        name: str,
        attempt: int,
        key: str | None,
        headers: Mapping[str, str],
        enqueued_ms: int,
        report: Callable[[TaskContext, Any], None],
    ) -> None:
        self.id: str = id
        self.name: str = name
        self.attempt: int = attempt  # 1 the first time
        self.key: str | None = key
        self.headers: Mapping[str, str] = headers
        self.enqueued_ms: int = enqueued_ms  # epoch ms
        self.cancelled: bool = False  # for functions that run in a thread: nothing else can interrupt them
        self._report = report

    def progress(self, value: Any) -> None:
        """Report progress: any JSON, for instance `{"done": 3, "of": 10}`. Does not wait; works from a thread, too."""
        self._report(self, value)
