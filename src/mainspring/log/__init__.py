"""The durable log: one contract, several engines.

| module | what it is |
|---|---|
| contract | what every engine promises: operations, batches, receipts, errors, and helpers for writing an engine |
| log | `Log`: group commit, the engine's face for the parts of a node |
| blocking_log | `BlockingLog`: the same for callers without an asyncio loop |
| export_import | a log as lines of JSON: out of any engine, into any other |
| inspect | looking at a log: is it there, and how much does it hold |
| engines/ | memory and sqlite (embedded), nats and mongo (plug-ins), and the registry that finds them |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.lazy_imports import lazy_imports
from mainspring.log.blocking_log import BlockingLog
from mainspring.log.contract import (
    ABSENT,
    ANY_VERSION,
    Append,
    Appended,
    Batch,
    Bounds,
    Change,
    DamagedEvent,
    DamagedRecord,
    Delete,
    DirectEngine,
    Durability,
    Engine,
    EngineFactory,
    EngineSetup,
    FallibleEngine,
    FormatError,
    Guard,
    InDoubt,
    Inspection,
    KeptRecord,
    KeptTail,
    LogExists,
    LogLocked,
    LogMissing,
    LogUnavailable,
    Mark,
    MissedTooMuch,
    Operation,
    Outline,
    Prepared,
    Progress,
    Put,
    Receipt,
    Record,
    Refused,
    Remove,
    Restorable,
    Result,
    SharedEngine,
    StoredEvent,
    add_prepared,
)
from mainspring.log.engines.memory import MemoryEngine, SharedMemory, SharedMemoryEngine
from mainspring.log.engines.registry import engine_factory, open_engine
from mainspring.log.engines.sqlite import SqliteEngine, log_file
from mainspring.log.log import Log

if TYPE_CHECKING:
    from mainspring.log.engines.sqlite.backup import backup as backup
    from mainspring.log.engines.sqlite.check import CheckReport as CheckReport
    from mainspring.log.engines.sqlite.check import check as check
    from mainspring.log.export_import import LogExport as LogExport
    from mainspring.log.export_import import Moved as Moved
    from mainspring.log.export_import import import_lines as import_lines
    from mainspring.log.inspect import Survey as Survey
    from mainspring.log.inspect import inspect_log as inspect_log
    from mainspring.log.inspect import survey as survey

_HOMES: Final = {
    "mainspring.log.engines.sqlite.backup": "backup",
    "mainspring.log.engines.sqlite.check": "CheckReport check",
    "mainspring.log.export_import": "LogExport Moved import_lines",
    "mainspring.log.inspect": "Survey inspect_log survey",
}
__all__ = [
    "ABSENT",
    "ANY_VERSION",
    "Append",
    "Appended",
    "Batch",
    "BlockingLog",
    "Bounds",
    "Change",
    "DamagedEvent",
    "DamagedRecord",
    "Delete",
    "DirectEngine",
    "Durability",
    "Engine",
    "EngineFactory",
    "EngineSetup",
    "FallibleEngine",
    "FormatError",
    "Guard",
    "InDoubt",
    "Inspection",
    "KeptRecord",
    "KeptTail",
    "Log",
    "LogExists",
    "LogLocked",
    "LogMissing",
    "LogUnavailable",
    "Mark",
    "MemoryEngine",
    "MissedTooMuch",
    "Operation",
    "Outline",
    "Prepared",
    "Progress",
    "Put",
    "Receipt",
    "Record",
    "Refused",
    "Remove",
    "Restorable",
    "Result",
    "SharedEngine",
    "SharedMemory",
    "SharedMemoryEngine",
    "SqliteEngine",
    "StoredEvent",
    "add_prepared",
    "engine_factory",
    "log_file",
    "open_engine",
]
__getattr__ = lazy_imports(globals(), _HOMES)
