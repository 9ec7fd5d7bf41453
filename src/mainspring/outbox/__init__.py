"""Outbox and inbox: events and effects in one transaction with the program's own rows.

- `outbox`: events written beside the program's rows
- `drainer`: carries them to the bus; an outbox by its address
- `inbox`: a consumer's effect and the mark that it happened
- `store`: what a drainer needs of a database; `sql`, `mongo`: the two kinds,
  and what a program has open as something that executes statements
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.lazy_imports import lazy_imports

if TYPE_CHECKING:
    from mainspring.outbox.drainer import Drained as Drained
    from mainspring.outbox.drainer import Drainer as Drainer
    from mainspring.outbox.drainer import DrainOptions as DrainOptions
    from mainspring.outbox.drainer import open_outbox as open_outbox
    from mainspring.outbox.inbox import Inbox as Inbox
    from mainspring.outbox.outbox import MAX_EVENT_BYTES as MAX_EVENT_BYTES
    from mainspring.outbox.outbox import Outbox as Outbox
    from mainspring.outbox.sql import Bound as Bound
    from mainspring.outbox.sql import NoTransaction as NoTransaction
    from mainspring.outbox.sql import SqlStore as SqlStore
    from mainspring.outbox.sql import Steps as Steps
    from mainspring.outbox.sql import bind as bind
    from mainspring.outbox.store import TABLE as TABLE
    from mainspring.outbox.store import OutboxRow as OutboxRow
    from mainspring.outbox.store import OutboxStore as OutboxStore
    from mainspring.outbox.store import OutboxUnavailable as OutboxUnavailable
    from mainspring.outbox.store import WaitingRows as WaitingRows

_HOMES: Final = {
    "mainspring.outbox.drainer": "DrainOptions Drained Drainer open_outbox",
    "mainspring.outbox.inbox": "Inbox",
    "mainspring.outbox.outbox": "MAX_EVENT_BYTES Outbox",
    "mainspring.outbox.sql": "Bound NoTransaction SqlStore Steps bind",
    "mainspring.outbox.store": "OutboxRow OutboxStore OutboxUnavailable TABLE WaitingRows",
}
__getattr__ = lazy_imports(globals(), _HOMES)
