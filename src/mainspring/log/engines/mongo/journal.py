"""The journal: every commit is one document, and its number is its place in the one order of the log.

Storing an entry is one insert of an unused number. The server lets one node have each number; the
second gets "duplicate", reads what the first one stored, and plans again. One insert needs no transaction, and
every server that speaks this protocol does it atomically.

A broken connection leaves open whether an insert arrived. The same document is then inserted again: its token tells
whether the one found there is the own one, and twice it cannot be stored.

Old entries are deleted. Their numbers must stay used all the same, or a node that was stopped for an hour could store
its next commit in the past. So before entries are deleted, `floor` is written, and after each insert it is read: an
entry that came to lie at or below the floor does not count, and its node gets `MissedTooMuch`.

Each entry carries the digest of all before it. Over a new connection nothing is inserted before the newest entry that
this node knows was compared with the server's (`KnownHistory`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, Literal

from pymongo.errors import DuplicateKeyError, OperationFailure, PyMongoError

from mainspring.errors import MainspringError
from mainspring.log.contract import InDoubt, LogUnavailable, MissedTooMuch
from mainspring.log.engines.history import CommitMark, KnownHistory, OtherHistory, mark_after, other_history
from mainspring.log.engines.mongo import documents as docs
from mainspring.log.engines.mongo.connection import may_pass, never_sent, translated
from mainspring.log.engines.mongo.documents import Body, JournalEntry
from mainspring.loop import Clock
from mainspring.retries import Backoff

_MOST_AHEAD: Final = 16  # entries asked for at once
_AGAIN: Final = Backoff(first_ms=20, longest_ms=500)


class Journal:
    """`step` gets the name of each write before it happens; tests stop the process there."""

    def __init__(
        self, database: Any, identity: str, node: str, shown: str, clock: Clock, step: Callable[[str], object]
    ) -> None:
        self.commits: Any = database[docs.COMMITS]
        self._meta = database[docs.META]
        self._identity = identity
        self.node = node
        self._shown = shown
        self.clock = clock
        self._step = step
        self._tries = 0
        self._ahead = 1
        self.history: KnownHistory = KnownHistory(CommitMark(), self.mark_at, clock)

    # -- writing

    async def append(self, number: int, body: Body, deadline_ms: int) -> JournalEntry | None:
        """The entry, durably stored under this number; None when another node has it.

        Raises `LogUnavailable` when it is certainly not stored, `InDoubt` when that is not known, `MissedTooMuch`, and
        `OtherHistory`.
        """
        entry, document = self._entry(number, body)
        sent = False
        pauses = _AGAIN.series()
        while True:
            try:
                stored = await self.history.write(partial(self._insert, document, sent))
                if stored:
                    sent = True
                    await self.check_position(number - 1)
                    return entry
                if stored is False:
                    return None
            except PyMongoError as error:
                sent = sent or (may_pass(error) and not never_sent(error))
                if not may_pass(error) or self.clock.now_ms() >= deadline_ms:
                    raise self._given_up(error, sent) from error
            except OtherHistory:
                if sent:  # it stands in a log that is not this one
                    await self.commits.delete_one({"_id": document["_id"], "token": document["token"]})
                raise
            except LogUnavailable as error:
                if isinstance(error, MissedTooMuch) or self.clock.now_ms() >= deadline_ms:
                    raise
            await asyncio.sleep(pauses.failed() / 1000)

    def _entry(self, number: int, body: Body) -> tuple[JournalEntry, dict[str, Any]]:
        self._tries += 1
        token, before, data = f"{self.node}:{self._tries}", self.history.last.digest, docs.encode_body(body)
        entry = JournalEntry(
            number, self.node, token, self.clock.wall_ms(), body, before, mark_after(before, number, token, data)
        )
        return entry, {
            "_id": docs.commit_id(number),
            "node": entry.node,
            "token": entry.token,
            "at": entry.at,
            "format": docs.FORMAT,
            "before": before,
            "body": data,
        }

    async def _insert(self, document: dict[str, Any], again: bool) -> bool | None:
        """Whether it is stored; None when that cannot be seen yet."""
        try:
            self._step("journal")
            await self.commits.insert_one(document)
            return True
        except DuplicateKeyError:
            if not again:
                return False
        found = await self.commits.find_one({"_id": document["_id"]}, {"token": 1})
        if found is None:
            return None
        if found.get("token") != document["token"]:
            return False
        # It is at the primary. A majority has it once a majority has something that came after it.
        await self._meta.update_one({"_id": "settled"}, {"$set": {"token": document["token"]}}, upsert=True)
        return True

    def _given_up(self, error: PyMongoError, sent: bool) -> MainspringError:
        unavailable = translated(error, self._shown)
        if not sent:
            return unavailable
        return InDoubt(
            f"the answer of MongoDB at {self._shown} was lost: {unavailable.message}",
            remedy="look whether it happened before trying again",
        )

    # -- reading

    async def after(self, position: int) -> list[JournalEntry]:
        """The next entries, without a gap; a few at most. Who is far behind asks for several at once."""
        count = self._ahead
        entries: list[JournalEntry] = []
        for entry in await asyncio.gather(*(self._read(position + 1 + n) for n in range(count))):
            if entry is None:
                break
            entries.append(entry)
        self._ahead = min(2 * count, _MOST_AHEAD) if len(entries) == count else 1
        return entries

    async def _read(self, number: int) -> JournalEntry | None:
        found = await self.commits.find_one({"_id": docs.commit_id(number)})
        return None if found is None else docs.entry_of(number, found, _mark(number, found))

    async def mark_at(self, number: int) -> CommitMark | None:
        """Of the server's entry; without a token when old entries up to this one were deleted; None when it is lost."""
        found = await self.commits.find_one({"_id": docs.commit_id(number)})
        if found is not None:
            return _mark(number, found)
        return CommitMark(number) if (await self.reached("floor"))[0] >= number else None

    # -- how far it is applied, and how far it is gone

    async def reached(self, name: Literal["applied", "floor"]) -> tuple[int, int]:
        """Number and last version of the entry up to which all are in the collections, or are deleted."""
        found = await self._meta.find_one({"_id": name})
        return (int(found["number"]), int(found["version"])) if found else (0, 0)

    async def set_applied(self, number: int, version: int) -> None:
        self._step("applied")
        await self._raise("applied", number, version)

    async def purge(self, number: int, version: int) -> None:
        """Delete the entries up to this one."""
        self._step("floor")
        await self._raise("floor", number, version)
        self._step("purge")
        await self.commits.delete_many({"_id": {"$lte": docs.commit_id(number)}})

    async def _raise(self, name: str, number: int, version: int) -> None:
        await self._meta.update_one({"_id": name}, {"$max": {"number": number, "version": version}}, upsert=True)

    async def check_position(self, position: int) -> None:
        """Raise `MissedTooMuch` when entries that this node has not seen are gone, `OtherHistory` when all are."""
        found = {each["_id"]: each async for each in self._meta.find({"_id": {"$in": ["floor", "format"]}})}
        if found.get("format", {}).get("log") != self._identity:
            raise other_history("the log", self._identity, "gone" if "format" not in found else "another one")
        if found.get("floor", {"number": 0})["number"] > position:
            raise MissedTooMuch(
                "this node was away for longer than the journal of the log is kept",
                remedy="start it again; to bridge longer absences raise keep_ms in the address",
            )


def _mark(number: int, found: dict[str, Any]) -> CommitMark:
    before, body = found.get("before", b""), found.get("body")  # of a document that no node has written, too
    return mark_after(_bytes(before), number, str(found.get("token", "")), _bytes(body))


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else b""


# -- learning what other nodes commit
#
# Where the server has change streams, one on the journal says when to look; it is a wake-up and nothing more, so that
# losing it costs time and never an entry. Where it has none, and beside it, the next number of the journal is looked
# for again and again, with pauses that grow while nothing happens, and that are never shorter than the answer took:
# asking a slow server more often makes it slower. An own commit counts as a look: it would have found its number taken.

_SHORTEST_MS: Final = 10
_WITH_STREAM_MS: Final = 1_000  # between looks while a change stream would say
_LOST_MS: Final = 500  # between tries while the server is away


class JournalFollower:
    """Calls `look`, which says whether there was a new entry. Errors of the server are waited out; others end it."""

    def __init__(self, journal: Journal, poll_ms: int, look: Callable[[], Awaitable[bool]]) -> None:
        self._commits = journal.commits
        self._clock = journal.clock
        self._poll_ms = poll_ms
        self._look = look
        self._wake = asyncio.Event()
        self._active = False
        self._streaming = False
        self.reconnects: int = 0

    def note_activity(self) -> None:
        """An entry came another way: no need to look for a while, and more may come soon."""
        self._active = True
        self._wake.set()

    async def poll(self) -> None:
        pause, lost = _SHORTEST_MS, False
        while True:
            asked_ms = self._clock.now_ms()
            try:
                if await self._look():
                    pause = _SHORTEST_MS // 2  # more may come soon
                self.reconnects += lost
                lost = False
            except MissedTooMuch:
                raise
            except (PyMongoError, LogUnavailable):
                pause, lost = _LOST_MS, True
            await self._rest(max(pause, self._clock.now_ms() - asked_ms))
            pause = min(max(pause, 1) * 2, _WITH_STREAM_MS if self._streaming else self._poll_ms)

    async def _rest(self, pause_ms: int) -> None:
        """Wait for a wake-up or the end of the pause; activity begins the pause anew."""
        while True:
            self._wake.clear()
            self._active = False
            try:
                async with asyncio.timeout(pause_ms / 1000):
                    await self._wake.wait()
            except TimeoutError:
                return
            if not self._active:
                return

    async def listen(self) -> None:
        """Let a change stream say when to look; returns where there is none."""
        while True:
            try:
                async with await self._commits.watch([{"$match": {"operationType": "insert"}}]) as stream:
                    self._streaming = True
                    async for _ in stream:
                        self._wake.set()
            except OperationFailure as error:
                if not error.has_error_label("ResumableChangeStreamError"):
                    return  # this server has none
            except PyMongoError:
                pass
            finally:
                self._streaming = False
            await asyncio.sleep(_LOST_MS / 1000)
