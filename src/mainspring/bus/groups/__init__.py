"""Groups: members that share a topic's events, each event leased to one of them at a time.

group           the state machine of delivery: members join and answer, leases are given and end
position        where a group stands in one partition: the cursor and the open events, and how they are stored
member          one subscription: its window, its filter, the frames it is sent
member_choice   which member gets an event: taking turns, filters, keys that stick to members
registry        where groups start, are moved to, are listed and deleted
delivery        drives the groups: wakes them, reads for them, stores their positions (acknowledgements)
dead_letters    events a group could not handle: writing, reading and sending them back
supply          what differs between a log of the node's own and a shared one, as a protocol
local           the supply of a node that owns its log
shared/         the supply of a node that shares its log with others

                frames                   Group ---- MemberChoice ---- Member
Session  ------------------------------>  |  one per partition: Position
   |                                      |
   |  SUBSCRIBE, seek, delete             |  changed, fetch, wake_at, write_dead_letters
   v                                      v
GroupRegistry                          Delivery ----> DeadLetterWriter
   |                                      |
   +---------------> Supply <-------------+  deliver, store, put_position
          LocalSupply  or  SharedSupply
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.lazy_imports import lazy_imports

if TYPE_CHECKING:
    from mainspring.bus.groups.group import Group as Group
    from mainspring.bus.groups.group import LeaseView as LeaseView
    from mainspring.bus.groups.member import Gate as Gate
    from mainspring.bus.groups.member import Member as Member
    from mainspring.bus.groups.member import MemberOrigin as MemberOrigin
    from mainspring.bus.groups.member import MemberView as MemberView
    from mainspring.bus.groups.position import OpenEvent as OpenEvent
    from mainspring.bus.groups.position import Position as Position
    from mainspring.bus.groups.position import PositionWrite as PositionWrite

_HOMES: Final = {
    "mainspring.bus.groups.group": "Group LeaseView",
    "mainspring.bus.groups.member": "Gate Member MemberOrigin MemberView",
    "mainspring.bus.groups.position": "OpenEvent Position PositionWrite",
}
__getattr__ = lazy_imports(globals(), _HOMES)  # eagerly they would import the bus, which imports them
