"""What a drainer needs of a database, whichever it is.

A row waits, is sent, or is set aside. Taking a row is a claim under a lease: it names the drainer and ends by itself,
so a drainer that dies holds nothing for long. Of the rows of one key and topic, a drainer gets the oldest first, and
nobody gets a later one while an earlier one is claimed by another or waits for its next attempt: so their order holds
with any number of drainers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from mainspring.errors import MainspringError

TABLE: Final = "mainspring_outbox"


class OutboxUnavailable(MainspringError):
    """The database did not do what it was asked; nothing is lost, the claim ends by itself."""

    code = "outbox_unavailable"


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """One event as it waits. `headers` and `payload` are JSON text; `error` is why it was last refused."""

    id: str
    topic: str
    key: str | None
    headers: str | None
    payload: str
    created_ms: int
    attempts: int = 0
    error: str = ""

    @property
    def lane(self) -> tuple[str, str] | None:
        """What it must stay in order with; None: nothing."""
        return None if self.key is None else (self.topic, self.key)


@dataclass(frozen=True, slots=True)
class WaitingRows:
    """How much is left to do: rows that wait, when the oldest was added, rows set aside."""

    waiting: int
    oldest_ms: int | None
    set_aside: int


def is_mongo(target: Any) -> bool:
    """Whether what a program has open belongs to MongoDB's driver, which need not be installed."""
    return type(target).__module__.partition(".")[0] == "pymongo"


class OutboxStore(Protocol):
    """A table or collection of rows. Every method is one transaction, and raises OutboxUnavailable."""

    def create(self) -> None:
        """Make the table and indexes where they are missing."""

    def claim(self, drainer: str, now_ms: int, lease_ms: int, limit: int) -> list[OutboxRow]:
        """The oldest rows that may be sent now, claimed until the lease ends."""

    def sent(self, places: Sequence[tuple[OutboxRow, str]], now_ms: int) -> None:
        """These are durable at the node, each at its place. True whoever claims them by now."""

    def refused(self, drainer: str, row: OutboxRow, error: str, due_ms: int, max_attempts: int) -> bool:
        """The node does not take this one: it waits until `due_ms`, or is set aside (True) when it was the last try."""

    def release(self, drainer: str) -> int:
        """Give back everything this drainer holds."""

    def clean(self, before_ms: int) -> int:
        """Forget rows that were sent before; how many."""

    def count(self) -> WaitingRows:
        """How many rows wait, and since when."""

    def aside(self, limit: int) -> list[OutboxRow]:
        """Rows that were set aside, oldest first."""

    def retry(self, ids: Sequence[str] | None) -> int:
        """Let rows that were set aside wait again, with all attempts before them; None: all. How many."""

    def close(self) -> None:
        """Give the connection to the database back."""
