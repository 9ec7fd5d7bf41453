"""One history: what engines on servers share to find out that the servers have another one than this node has seen.

A server that loses power, or is restored from a backup, may come back with less than it had acknowledged. If somebody
writes before a node looks, the log is as long as the node knows it, and holds something else. So length says nothing:
commits are compared.

- Every commit carries a **digest** of the history before it (`CommitMark`). A writer that has seen another history is
  found out by the first commit that others read of it.
- Whenever a link to the servers is new, the last commit known here is compared with the servers' (`KnownHistory`), and
  nothing is sent before that.
- A node that finds another history stops. What only it has seen is kept in a log file of its own (`keep_aside`), which
  `mainspring engine compare` and `engine recover` read.

The JetStream engine has numbers with times of the server, and a whole replica to keep: see its own `history`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from contextvars import ContextVar
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from mainspring.log.contract import FormatError, KeptTail, LogUnavailable, StoredEvent
from mainspring.log.engines.sqlite import SqliteEngine
from mainspring.loop import Clock
from mainspring.private_files import make_private_file, make_private_folder

logger: logging.Logger = logging.getLogger("mainspring.log")

BELIEVE_MS: Final = 15_000  # a server that has just taken over may not know the newest commits; after that it lost them
SURELY_THE_SAME_MS: Final = 50
SQLITE_FILES: Final = ("", "-wal", "-shm")
T = TypeVar("T")

_DIGEST_BYTES: Final = 12
_AT_ONCE: Final = 500


class OtherHistory(FormatError):
    """The servers, or another node, have another history than this node has seen."""

    code = "other_history"


def other_history(what: str, ours: str, theirs: str) -> OtherHistory:
    return OtherHistory(
        f"two histories: {what} of the servers is {theirs}, this node has seen {ours}; "
        "the servers came back with less than they had acknowledged, or the log was replaced",
        remedy="restart the node: it keeps its own log aside and follows the servers; `mainspring engine compare` then "
        "shows what only the old log holds, and `mainspring engine recover` publishes it again",
    )


# -- the chain of commits


class CommitMark(msgspec.Struct, frozen=True, gc=False):
    """Which commit has a number. `token` is of one try of one writer, `digest` of the history up to this commit.

    Both are empty where they are not known: the commit is gone, or a version without digests wrote it.
    """

    number: int = 0
    token: str = ""
    digest: bytes = b""

    def __str__(self) -> str:
        return f"{self.number} by {self.token} ({self.digest.hex()[:8]})"

    def is_followed_by(self, before: bytes) -> bool:
        """Whether a commit that carries `before` can be the next one."""
        return not before or not self.digest or before == self.digest


def mark_after(before: bytes, number: int, token: str, body: bytes) -> CommitMark:
    """The mark of a commit that carries the digest `before`. It follows from what is stored, so all nodes agree."""
    digest = blake2b(before, digest_size=_DIGEST_BYTES)
    digest.update(f"{number} {token} ".encode())
    digest.update(body)
    return CommitMark(number, token, digest.digest())


class NewLink(BaseException):
    """Raised into the driver, which would open a link for a write that is not to go over one that was not compared.

    Drivers keep errors of listeners to themselves, unless they are of this kind; `KnownHistory.write` catches it.
    """


_writing: ContextVar[KnownHistory | None] = ContextVar("writing", default=None)


class KnownHistory:
    """The last commit that this node knows, and whether the servers have the same.

    `fetch` asks the servers for the mark of a number: None when they have no such commit, a mark without a token when
    it is gone for a good reason.
    """

    def __init__(self, last: CommitMark, fetch: Callable[[int], Awaitable[CommitMark | None]], clock: Clock) -> None:
        self.last: CommitMark = last
        self._fetch = fetch
        self._clock = clock
        self._links = 0
        self._compared_links = 0
        self._compared_ms = 0
        self._missing_since_ms: int | None = None

    def note_link(self) -> None:
        """A driver is about to open a link to a server. Raises `NewLink` when that is for a write, and too late for it.

        A write that waits for a server may find another one than was compared. Shortly after the comparison a driver
        may open as many links as it likes: no server comes back with older files so soon.
        """
        self._links += 1
        if _writing.get() is self and self._clock.now_ms() - self._compared_ms > SURELY_THE_SAME_MS:
            raise NewLink

    async def write(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do something that writes, over links over which the last commit was compared. Raises like `compare`.

        `work` may be begun again: it gets nowhere over a link that is new.
        """
        while True:
            await self.compare()
            before = _writing.set(self)
            try:
                return await work()
            except NewLink:
                continue
            finally:
                _writing.reset(before)

    async def compare(self) -> None:
        """If a link is new, compare the last commit with the servers'.

        Raises `LogUnavailable` while the servers may yet know more, and then `OtherHistory`.
        """
        if self._compared_links != self._links:
            links, now = self._links, self._clock.now_ms()
            await self.compare_now()
            self._compared_links, self._compared_ms = links, now

    async def compare_now(self) -> None:
        """Raises like `compare`."""
        ours = self.last
        if not ours.token:
            return
        theirs = await self._fetch(ours.number)
        if theirs is None:
            now = self._clock.now_ms()
            if self._missing_since_ms is None:
                self._missing_since_ms = now
            if now - self._missing_since_ms < BELIEVE_MS:
                raise LogUnavailable(
                    f"the servers do not know commit {ours} yet, which they had acknowledged", remedy="try again"
                )
            raise other_history(f"commit {ours.number}", str(ours), "gone")
        self._missing_since_ms = None
        if theirs.token and theirs != ours:
            raise other_history(f"commit {ours.number}", str(ours), str(theirs))


# -- knowing a log again


class LogTrace:
    """A file in a node's data directory that says which log the node belongs to, where it has no replica to tell."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def exists(self) -> bool:
        return self._path.exists()

    def remember(self, identity: str, place: str) -> None:
        """This is the log at `place` now. Says so when it was another one."""
        before = self._path.read_text().strip() if self.exists else identity
        if before != identity:
            logger.warning("the log at %s is another one than this node has known: it was made anew", place)
        if before != identity or not self.exists:
            make_private_folder(self._path.parent)
            make_private_file(self._path)
            self._path.write_text(identity + "\n")

    def forget(self) -> None:
        self._path.unlink(missing_ok=True)


# -- keeping aside what only this node has seen


def unused_name(path: Path) -> Path:
    """Beside `path`, a name that no file has: nothing that was kept is ever overwritten."""
    names = (path.with_name(f"{path.name}.replaced-{number}") for number in count(1))
    return next(name for name in names if not name.exists())


def move_aside(path: Path) -> Path:
    """Give a SQLite file such a name; the new one."""
    aside = unused_name(path)
    for suffix in SQLITE_FILES:
        with suppress(FileNotFoundError):
            os.replace(f"{path}{suffix}", f"{aside}{suffix}")
    return aside


async def keep_aside(path: Path, partitions: Iterable[tuple[Iterable[StoredEvent], KeptTail]]) -> Path:
    """Make a log file of events that a node holds in memory, partition by partition; its name."""
    aside = unused_name(path)
    engine = SqliteEngine(aside)
    await engine.open()
    try:
        for events, tail in partitions:
            held = list(events)
            for start in range(0, len(held), _AT_ONCE):
                await engine.restore(held[start : start + _AT_ONCE])
            await engine.restore([tail])
    finally:
        await engine.close()
    return aside
