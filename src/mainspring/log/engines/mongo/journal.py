"""The journal: every commit is one document, and its number is its place in the one order of the log.

Storing an entry is one insert of a number that nobody has used. The server lets one node have each number; whoever
comes second hears "duplicate", reads what the first one stored, and plans again. One insert needs no transaction, and
every server that speaks this protocol does it atomically.

A broken connection leaves open whether an insert arrived. The same document is then inserted again: its token tells
whether the one found there is the own one, and twice it cannot be stored.

Old entries are deleted. Their numbers must stay used all the same, or a node that was stopped for an hour could store
its next commit in the past. So before entries are deleted, `floor` is written, and after each insert it is read: an
entry that came to lie at or below the floor does not count, and its node is told that it has missed too much.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from pymongo.errors import DuplicateKeyError, PyMongoError

from mainspring.errors import MainspringError
from mainspring.log.contract import InDoubt, LogUnavailable
from mainspring.log.engines.mongo.effects import Body, Entry, decode_body, encode_body
from mainspring.log.engines.mongo.faults import may_pass, never_sent, translated
from mainspring.log.engines.mongo.schema import COMMITS, FORMAT, META, commit_id
from mainspring.loop import Clock

_MOST_AHEAD: Final = 16  # entries asked for at once
_FIRST_PAUSE_MS: Final = 20
_LONGEST_PAUSE_MS: Final = 500


class Missed(LogUnavailable):
    """This node was away for longer than the journal is kept. What it knows is outdated; it must start again."""

    code = "missed_too_much"


class Journal:
    """`step` is told the name of each write before it happens; tests stop the process there."""

    def __init__(self, database: Any, node: str, shown: str, clock: Clock, step: Callable[[str], object]) -> None:
        self._commits = database[COMMITS]
        self._meta = database[META]
        self._node = node
        self._shown = shown
        self._clock = clock
        self._step = step
        self._tries = 0
        self._ahead = 1

    # -- writing

    async def append(self, number: int, body: Body, deadline_ms: int) -> Entry | None:
        """The entry, durably stored under this number; None when another node has it.

        Raises `LogUnavailable` when it is certainly not stored, `InDoubt` when that is not known, `Missed`.
        """
        self._tries += 1
        entry = Entry(number, self._node, f"{self._node}:{self._tries}", self._clock.wall_ms(), body)
        document = {
            "_id": commit_id(number),
            "node": entry.node,
            "token": entry.token,
            "at": entry.at,
            "format": FORMAT,
            "body": encode_body(body),
        }
        sent = False
        pause = _FIRST_PAUSE_MS
        while True:
            try:
                stored = await self._insert(document, sent)
                if stored:
                    sent = True
                    await self._check_floor(number)
                    return entry
                if stored is False:
                    return None
            except PyMongoError as error:
                sent = sent or (may_pass(error) and not never_sent(error))
                if not may_pass(error) or self._clock.now_ms() >= deadline_ms:
                    raise self._given_up(error, sent) from error
            await asyncio.sleep(pause / 1000)
            pause = min(2 * pause, _LONGEST_PAUSE_MS)

    async def _insert(self, document: dict[str, Any], again: bool) -> bool | None:
        """Whether it is stored; None when that cannot be seen yet."""
        try:
            self._step("journal")
            await self._commits.insert_one(document)
            return True
        except DuplicateKeyError:
            if not again:
                return False
        found = await self._commits.find_one({"_id": document["_id"]}, {"token": 1})
        if found is None:
            return None
        if found["token"] != document["token"]:
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

    async def after(self, position: int) -> list[Entry]:
        """The next entries, without a gap; a few at most. Who is far behind asks for several at once."""
        count = self._ahead
        entries: list[Entry] = []
        for entry in await asyncio.gather(*(self._read(position + 1 + n) for n in range(count))):
            if entry is None:
                break
            entries.append(entry)
        self._ahead = min(2 * count, _MOST_AHEAD) if len(entries) == count else 1
        return entries

    async def _read(self, number: int) -> Entry | None:
        found = await self._commits.find_one({"_id": commit_id(number)})
        if found is None:
            return None
        body = decode_body(found["body"], found["format"])
        return Entry(number, found["node"], found["token"], found["at"], body)

    # -- how far it is applied, and how far it is gone

    async def applied(self) -> tuple[int, int]:
        """Number and last version of the entry up to which all are in the collections."""
        return await self._mark_of("applied")

    async def floor(self) -> tuple[int, int]:
        """Number and last version of the entry up to which all are deleted."""
        return await self._mark_of("floor")

    async def _mark_of(self, name: str) -> tuple[int, int]:
        found = await self._meta.find_one({"_id": name})
        return (found["number"], found["version"]) if found else (0, 0)

    async def set_applied(self, number: int, version: int) -> None:
        self._step("applied")
        await self._raise("applied", number, version)

    async def purge(self, number: int, version: int) -> None:
        """Delete the entries up to this one."""
        self._step("floor")
        await self._raise("floor", number, version)
        self._step("purge")
        await self._commits.delete_many({"_id": {"$lte": commit_id(number)}})

    async def _raise(self, name: str, number: int, version: int) -> None:
        await self._meta.update_one({"_id": name}, {"$max": {"number": number, "version": version}}, upsert=True)

    async def _check_floor(self, number: int) -> None:
        if (await self.floor())[0] >= number:
            raise missed()

    async def check_position(self, position: int) -> None:
        """Raise `Missed` when entries that this node has not seen are gone."""
        if (await self.floor())[0] > position:
            raise missed()


def missed() -> Missed:
    return Missed(
        "this node was away for longer than the journal of the log is kept",
        remedy="start it again; to bridge longer absences raise keep_ms in the address",
    )
