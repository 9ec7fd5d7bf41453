"""Looking at what a group has under way: who waits for what, and until when.

Read from the group when somebody asks; nothing is kept for it.
"""

from __future__ import annotations

import msgspec

from mainspring.bus.group import Group
from mainspring.bus.position import OpenEvent
from mainspring.loop import Clock


class LeaseView(msgspec.Struct, frozen=True, gc=False):
    """One event a group was given and has not settled.

    `state` is leased, waiting (to be delivered again), delayed or dying (its dead letter is being written). `until` is
    the end of the lease or of the delay (epoch ms), 0 where there is none; `reason` is why it was given back.
    """

    partition: int
    offset: int
    state: str
    deliveries: int
    until: int
    key: str | None = None
    reason: str = ""


def leases(group: Group, clock: Clock, limit: int) -> list[LeaseView]:
    """The open events of a group by partition and offset, at most so many of each partition."""
    ahead = clock.wall_ms() - clock.now_ms()
    return [
        _view(number, event, ahead)
        for number, position in sorted(group.positions.items())
        for event in list(position.open.values())[:limit]
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
