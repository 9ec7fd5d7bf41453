"""The durable log: one contract, several engines."""

from __future__ import annotations

from mainspring.log.blocking import BlockingLog
from mainspring.log.choice import log_file, open_engine
from mainspring.log.contract import (
    ABSENT,
    ANY_VERSION,
    Append,
    Batch,
    Bounds,
    DamagedEvent,
    DamagedRecord,
    Delete,
    DirectEngine,
    Engine,
    FormatError,
    Guard,
    KeptRecord,
    LogLocked,
    LogUnavailable,
    Mark,
    Operation,
    Outline,
    Put,
    Receipt,
    Record,
    Refused,
    Remove,
    Restorable,
    Result,
    StoredEvent,
    Tail,
)
from mainspring.log.group_commit import Log
from mainspring.log.memory import MemoryEngine
from mainspring.log.sqlite import SqliteEngine

__all__ = [
    "ABSENT",
    "ANY_VERSION",
    "Append",
    "Batch",
    "BlockingLog",
    "Bounds",
    "DamagedEvent",
    "DamagedRecord",
    "Delete",
    "DirectEngine",
    "Engine",
    "FormatError",
    "Guard",
    "KeptRecord",
    "Log",
    "LogLocked",
    "LogUnavailable",
    "Mark",
    "MemoryEngine",
    "Operation",
    "Outline",
    "Put",
    "Receipt",
    "Record",
    "Refused",
    "Remove",
    "Restorable",
    "Result",
    "SqliteEngine",
    "StoredEvent",
    "Tail",
    "log_file",
    "open_engine",
]
