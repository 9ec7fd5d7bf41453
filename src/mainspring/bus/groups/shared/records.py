"""What nodes on one log write about a group, besides its position: which events each has, and who is there.

A **claim** holds the events of one partition that one node has taken and not settled. Only that node writes it, under
the version it last wrote and under its lease; others touch it only to take everything from the node: when the group is
moved, and when the node's lease is gone. `number` counts the node's writes, so that it recognises one whose answer was
lost.

A **presence** says how many members a node has in a group and what they want, so that the other nodes know whether a
member there accepts what none of their own does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from mainspring.bus.groups.member import MemberOrigin
from mainspring.bus.groups.position import (
    Ended,
    PositionRecord,
    Range,
    Retried,
    UnsettledFields,
    decode_copy,
    decode_position,
    pack,
    record_key,
)
from mainspring.bus.names import SEPARATOR
from mainspring.bus.protocol import Filter

CLAIMS = "claims"
MEMBERS = "members"
MOST_ORIGINS: Final = 100  # members of a node that the others know one by one; each that joins writes the record


class ClaimRecord(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The stored form of a claim; `generation` is that of the position it was taken from.

    `in_process`: a function of the node's own program gets the events, and may end the node.
    """

    topic: str
    group: str
    partition: int
    epoch: int
    generation: int = 0
    number: int = 0
    fresh: tuple[Range, ...] = ()
    open: tuple[Range, ...] = ()
    retried: tuple[Retried, ...] = ()
    ended: tuple[Ended, ...] = ()
    in_process: bool = False

    def count(self) -> int:
        """How many events it holds, those not counted that wait for a later time."""
        ranges = sum(last - first + 1 for first, last in (*self.fresh, *self.open))
        return ranges + sum(1 for _, _, _, due, _ in self.retried if not due)

    def lowest(self) -> int | None:
        """The lowest offset it holds."""
        return min([each[0][0] for each in (self.fresh, self.open, self.retried) if each], default=None)

    def fields(self) -> UnsettledFields:
        return UnsettledFields(self.fresh, self.open, self.retried, self.ended)


class PresenceRecord(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Members of one node. No filter among `filters` (None) stands for a member that takes everything."""

    topic: str
    group: str
    epoch: int
    members: int
    sticky: bool = False
    filters: tuple[Filter | None, ...] = ()
    max_attempts: int = 0  # what the node's own consumer declares; 0: nothing
    room: int = 0  # events its members want at a time; 0: an older version does not say
    origins: tuple[MemberOrigin, ...] = ()  # who they are, not more than `MOST_ORIGINS`


def with_claims(position: PositionRecord, claims: Sequence[ClaimRecord]) -> PositionRecord:
    """The position when everything the nodes held is free again."""
    if not claims:
        return position
    free = position.fields().events()
    for claim in claims:
        if claim.generation == position.generation:
            free.update(claim.fields().events())
    return msgspec.structs.replace(position, **msgspec.structs.asdict(pack(free)))


def claim_key(topic: str, group: str, partition: int, epoch: int) -> str:
    return f"{record_key(topic, group, partition)}{SEPARATOR}{epoch:020d}"


def presence_key(topic: str, group: str, epoch: int) -> str:
    return f"{topic}{SEPARATOR}{group}{SEPARATOR}{epoch:020d}"


def parts_of(key: str) -> tuple[str, str, list[int]]:
    """Topic, group and the numbers behind them: a partition, an epoch, or both."""
    topic, group, *numbers = key.split(SEPARATOR)
    return topic, group, [int(number) for number in numbers]


encode: Callable[[object], bytes] = msgspec.json.Encoder().encode
decode_claim: Callable[[bytes], ClaimRecord] = msgspec.json.Decoder(ClaimRecord).decode
decode_presence: Callable[[bytes], PresenceRecord] = msgspec.json.Decoder(PresenceRecord).decode


def read_position(key: str, value: bytes) -> None:
    """Raise where a record is not the position that its key names."""
    found = decode_position(value)
    if key != record_key(found.topic, found.group, found.partition) or found.cursor < 0:
        raise ValueError("it is of another group or partition")


def read_copy(key: str, value: bytes) -> None:
    """Raise where a record is not a dead letter that is open again."""
    _, _, (_, _) = parts_of(key)
    decode_copy(value)


def read_claim(key: str, value: bytes) -> None:
    """Raise where a record is not the claim that its key names."""
    found = decode_claim(value)
    if key != claim_key(found.topic, found.group, found.partition, found.epoch):
        raise ValueError("it is of another group or node")


def read_presence(key: str, value: bytes) -> None:
    """Raise where a record does not say who is in a group."""
    _, _, (_,) = parts_of(key)
    decode_presence(value)


def read_ttl(key: str, value: bytes) -> None:
    """Raise where a record does not say how long a group stays without members."""
    key.index(SEPARATOR)
    if int(value) < 1:
        raise ValueError("it is no time to live")


def read_owner(key: str, value: bytes) -> None:
    """Raise where a record does not say whose a group is."""
    key.index(SEPARATOR)
    value.decode()
