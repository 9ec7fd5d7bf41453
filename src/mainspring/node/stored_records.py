"""How every record of a node's log is read: the table by which one that nobody can read is found.

A node passes over such a record and goes on (`mainspring.log.unreadable`); `mainspring log check` lists it, and
`mainspring log import` takes none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from mainspring import bus, cluster
from mainspring.builtin import MEMORY, read_value
from mainspring.json_text import check_json
from mainspring.kernel import COMMANDS, read_command
from mainspring.log import Log, Reader, StoredEvent
from mainspring.runs.cluster import PLACEMENT_READERS
from mainspring.runs.durable import JOURNAL_READERS, LIVE, RUNS
from mainspring.runs.durable import RECORD_READERS as RUN_READERS

RECORD_READERS: Final[Mapping[str, Reader]] = {
    **bus.RECORD_READERS,
    **cluster.RECORD_READERS,
    **RUN_READERS,
    **PLACEMENT_READERS,
    COMMANDS: read_command,
    MEMORY: read_value,
}
# Also those whose part has to know that something is missing.
ALL_READERS: Final[Mapping[str, Reader]] = {**RECORD_READERS, **JOURNAL_READERS}


def check_event(event: StoredEvent) -> None:
    """Raise where a node would not have stored an event like this."""
    if not event.topic.startswith(bus.SYSTEM):
        bus.check_name("topic", event.topic)
    check_json(event.payload)
    if event.headers is not None:
        msgspec.json.decode(event.headers, type=dict[str, str])


def read_with_care(log: Log) -> None:
    """Let a log pass over records that nobody can read.

    The id of a run stays taken, even where its record cannot be read: its journal may be there.
    """
    log.records.use(RECORD_READERS)
    log.records.permanent = frozenset((RUNS, LIVE))
