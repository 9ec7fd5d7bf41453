"""The collections, what their documents are called, and the indexes.

| collection | `_id` | what |
|---|---|---|
| `events` | `topic:partition:offset` | one document for each event |
| `counters` | `topic:partition` | `nextOffset`: the last offset given |
| `group_offsets` | `topic:partition:group` | where a group stands (the records of space `groups`) |
| `topic_configs` | `topic` | a topic's settings (the records of space `topics`) |
| `records` | `space|key` | all other records |
| `marks` | `topic|text` | what was deduplicated |
| `commits` | the number | the journal: each commit is one document |
| `stones` | `number|collection|_id` | where deleted records and events left a document behind |
| `meta` | a name | format, how far the journal is applied, how far it is purged |

Names may hold colons, so parts of an `_id` that come before the last separator are kept apart by escaping where that is
needed: in the group of a position, and in spaces and topics before a `|`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

from mainspring.log.contract import FormatError

FORMAT: Final = 1

EVENTS: Final = "events"
COUNTERS: Final = "counters"
GROUP_OFFSETS: Final = "group_offsets"
TOPIC_CONFIGS: Final = "topic_configs"
RECORDS: Final = "records"
MARKS: Final = "marks"
COMMITS: Final = "commits"
STONES: Final = "stones"
META: Final = "meta"

GROUPS_SPACE: Final = "groups"
TOPICS_SPACE: Final = "topics"

Index = tuple[str, tuple[str, ...], bool]  # collection, fields, unique

INDEXES: Final[tuple[Index, ...]] = (
    (EVENTS, ("topic", "partition", "offset"), True),
    (EVENTS, ("topic", "partition", "ts"), False),
    (GROUP_OFFSETS, ("topic", "partition", "group"), True),
    (GROUP_OFFSETS, ("key",), False),
    (RECORDS, ("space", "key"), False),
    (MARKS, ("topic", "dedupe"), False),
    (MARKS, ("until",), False),
    (STONES, ("commit",), False),
    (STONES, ("at",), False),
)
COLLECTIONS: Final = (EVENTS, COUNTERS, GROUP_OFFSETS, TOPIC_CONFIGS, RECORDS, MARKS, COMMITS, STONES, META)


def event_id(topic: str, partition: int, offset: int) -> str:
    return f"{topic}:{partition}:{offset:016d}"


def counter_id(topic: str, partition: int) -> str:
    return f"{topic}:{partition}"


def commit_id(number: int) -> str:
    """Text with leading zeros: its order is the order of the numbers, and every server looks texts up quickly."""
    return f"{number:016d}"


def mark_id(topic: str, dedupe: str) -> str:
    return f"{_escaped(topic, '|')}|{dedupe}"


def position_of(key: str) -> tuple[str, int, str] | None:
    """Topic, partition and group of a record of `groups`; None when its key is not made of the three."""
    parts = key.split("|")
    if len(parts) != 3 or not parts[0] or not parts[1] or not parts[2].isascii() or not parts[2].isdigit():
        return None
    partition = int(parts[2])
    return (parts[0], partition, parts[1]) if f"{partition:06d}" == parts[2] and partition < 1 << 31 else None


def record_place(space: str, key: str) -> tuple[str, str]:
    """The collection and `_id` of a record."""
    if space == TOPICS_SPACE:
        return TOPIC_CONFIGS, key
    if space == GROUPS_SPACE and (position := position_of(key)):
        topic, partition, group = position
        return GROUP_OFFSETS, f"{topic}:{partition}:{_escaped(group, ':')}"
    return RECORDS, f"{_escaped(space, '|')}|{key}"


def record_collections(space: str) -> tuple[str, ...]:
    """Where records of this space may be."""
    if space == TOPICS_SPACE:
        return (TOPIC_CONFIGS,)
    return (GROUP_OFFSETS, RECORDS) if space == GROUPS_SPACE else (RECORDS,)


def _escaped(text: str, separator: str) -> str:
    if separator not in text and "%" not in text:
        return text
    return text.replace("%", "%25").replace(separator, f"%{ord(separator):02X}")


async def check_format(database: Any) -> bool:
    """Whether there is a log already. Raises `FormatError` when something else is there."""
    found: Mapping[str, Any] | None = await database[META].find_one({"_id": "format"})
    if found is None:
        foreign = sorted(set(await database.list_collection_names()) & set(COLLECTIONS))
        held = [name for name in foreign if await database[name].find_one({}) is not None]
        found = await database[META].find_one({"_id": "format"})  # another node may have just made it
        if held and found is None:
            raise FormatError(
                f"the database {database.name!r} holds {', '.join(held)}, which is not a log of Mainspring",
                remedy="name a database of its own in the address",
            )
        if found is None:
            return False
    if found.get("format") != FORMAT:
        raise FormatError(
            f"the log in the database {database.name!r} has format {found.get('format')!r}, not {FORMAT}",
            remedy="use the version of Mainspring that wrote it, or export there and import here",
        )
    return True


async def missing(database: Any) -> list[str]:
    """What `create` would make, in words."""
    return [what for what, _ in await _missing(database)]


async def create(database: Any) -> list[str]:
    """Make what is missing; what was done, in words. May be run at any time, by several nodes at once."""
    from pymongo.errors import CollectionInvalid, DuplicateKeyError, OperationFailure

    done: list[str] = []
    for what, make in await _missing(database):
        try:
            await make()
            done.append(f"created {what}")
        except (CollectionInvalid, OperationFailure):
            if any(what == left for left, _ in await _missing(database)):
                raise
    try:
        await database[META].insert_one({"_id": "format", "format": FORMAT})
        done.append(f"wrote the format's version: {FORMAT}")
    except DuplicateKeyError:
        pass
    return done


async def _missing(database: Any) -> list[tuple[str, Callable[[], Awaitable[object]]]]:
    """What is not there, in words, and how to make it."""
    there = set(await database.list_collection_names())
    found: list[tuple[str, Callable[[], Awaitable[object]]]] = [
        (f"the collection {name}", partial(database.create_collection, name))
        for name in COLLECTIONS
        if name not in there
    ]
    for name, fields, unique in INDEXES:
        keys = [(field, 1) for field in fields]
        indexes = await database[name].index_information() if name in there else {}
        if all(list(index["key"]) != keys for index in indexes.values()):
            what = f"the {'unique ' if unique else ''}index ({', '.join(fields)}) of {name}"
            found.append((what, partial(database[name].create_index, keys, unique=unique)))
    return found
