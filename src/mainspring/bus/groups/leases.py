"""Looking at what a group has under way: who waits for what, and until when.

Read from the group when somebody asks; nothing is kept for it. Where several nodes share a group, what the others have
is known from their claims: that they have it and how often it was delivered, not until when.
"""

from __future__ import annotations

import msgspec

from mainspring.bus.groups.group import Group
from mainspring.bus.groups.position import OpenEvent
from mainspring.bus.groups.shared.position import SharedPosition
from mainspring.bus.groups.unsettled import unpack
from mainspring.loop import Clock


class LeaseView(msgspec.Struct, frozen=True, gc=False):
    """One event a group was given and has not settled.

    `state` is leased, waiting (to be delivered again), delayed or dying (its dead letter is being written). `until` is
    the end of the lease or of the delay (epoch ms), 0 where there is none; `reason` is why it was given back. `epoch`
    is that of another node that has it; 0: this node, or none.
    """

    partition: int
    offset: int
    state: str
    deliveries: int
    until: int
    key: str | None = None
    reason: str = ""
    epoch: int = 0


def leases(group: Group, clock: Clock, limit: int) -> list[LeaseView]:
    """The open events of a group by partition and offset, at most so many of each partition."""
    ahead = clock.wall_ms() - clock.now_ms()
    found: list[LeaseView] = []
    for number, position in sorted(group.positions.items()):
        here = [_view(number, event, ahead) for event in list(position.open.values())[:limit]]
        if isinstance(position, SharedPosition):
            here = sorted([*here, *_elsewhere(position, clock.wall_ms())], key=lambda view: view.offset)[:limit]
        found += here
    return found


def _elsewhere(position: SharedPosition, wall_ms: int) -> list[LeaseView]:
    """What other nodes have, and what any node may take."""
    held = [(0, "waiting", position.free)]
    for epoch, claim in position.claims.items():
        if epoch != position.own_epoch and claim.record.generation == position.generation:
            held.append((epoch, "leased", unpack(claim.record)))
    return [
        LeaseView(
            position.partition,
            offset,
            "delayed" if known.due > wall_ms else state,
            known.deliveries,
            known.due,
            None,
            known.reason,
            epoch,
        )
        for epoch, state, events in held
        for offset, known in events.items()
    ]


def _view(partition: int, event: OpenEvent, ahead: int) -> LeaseView:
    if event.dying:
        state, until = "dying", 0
    elif event.member is not None:
        state, until = "leased", event.deadline
    elif event.due:
        state, until = "delayed", event.due
    else:
        state, until = "waiting", 0
    return LeaseView(
        partition, event.offset, state, event.deliveries, until + ahead if until else 0, event.key, event.reason
    )
