"""What nodes on one log write about a group, besides its shared position: who holds which events, and who is there.

A **claim** holds the events of one partition that one node has taken and not settled. Only that node writes it, under
the version it last wrote and under its lease; others touch it only to take everything from the node: when the group is
moved, and when the node's lease is gone. `number` counts the node's writes, so that it recognises one whose answer was
lost.

A **presence** says how many members a node has in a group and what they want, so that a node knows whether somebody
elsewhere accepts what nobody here does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from mainspring.bus.groups.position import PositionRecord, record_key
from mainspring.bus.groups.unsettled import Range, Retried, pack, unpack
from mainspring.bus.names import SEPARATOR
from mainspring.bus.protocol import Filter

CLAIMS = "claims"
MEMBERS = "members"


class ClaimRecord(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The stored form of a claim; `generation` is that of the shared position it was taken from."""

    topic: str
    group: str
    partition: int
    epoch: int
    generation: int = 0
    number: int = 0
    fresh: tuple[Range, ...] = ()
    open: tuple[Range, ...] = ()
    retried: tuple[Retried, ...] = ()

    def count(self) -> int:
        """How many events it holds, those not counted that wait for a later time."""
        ranges = sum(last - first + 1 for first, last in (*self.fresh, *self.open))
        return ranges + sum(1 for _, _, _, due, _ in self.retried if not due)


class PresenceRecord(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Members of one node. No filter among `filters` (None) stands for a member that takes everything."""

    topic: str
    group: str
    epoch: int
    members: int
    sticky: bool = False
    filters: tuple[Filter | None, ...] = ()
    max_attempts: int = 0  # what the node's own consumer says; 0: nothing


def with_claims(position: PositionRecord, claims: Sequence[ClaimRecord]) -> PositionRecord:
    """The position when everything the nodes held is free again."""
    if not claims:
        return position
    free = unpack(position)
    for claim in claims:
        if claim.generation == position.generation:
            free.update(unpack(claim))
    packed = pack(free)
    return msgspec.structs.replace(position, fresh=packed.fresh, open=packed.open, retried=packed.retried)


def claim_key(topic: str, group: str, partition: int, epoch: int) -> str:
    return f"{record_key(topic, group, partition)}{SEPARATOR}{epoch:020d}"


def presence_key(topic: str, group: str, epoch: int) -> str:
    return f"{topic}{SEPARATOR}{group}{SEPARATOR}{epoch:020d}"


def parts_of(key: str) -> tuple[str, str, int]:
    """Topic, group and the number at the end of a key: a partition or an epoch."""
    topic, group, *_, last = key.split(SEPARATOR)
    return topic, group, int(last)


encode: Callable[[object], bytes] = msgspec.json.Encoder().encode
decode_claim: Callable[[bytes], ClaimRecord] = msgspec.json.Decoder(ClaimRecord).decode
decode_presence: Callable[[bytes], PresenceRecord] = msgspec.json.Decoder(PresenceRecord).decode
