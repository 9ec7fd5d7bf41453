"""The durable log: one contract, several engines.

| module | what it is |
|---|---|
| contract | what every engine promises: operations, batches, receipts, errors, and helpers for writing an engine |
| log | `Log`: group commit, the engine's face for the parts of a node |
| log_clock | `LogClock`: one time of day for all nodes of a log, that of its servers |
| blocking_log | `BlockingLog`: the same for callers without an asyncio loop |
| export_import | a log as lines of JSON: out of any engine, into any other |
| contents | `survey`: how much a log holds |
| unreadable | records that cannot be read: named, and set aside |
| comparison | `compare_logs`: where two logs go apart, and what only one of them holds |
| engines/ | memory and sqlite (embedded), postgres, nats and mongo (plug-ins), and the registry that finds them |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.lazy_imports import lazy_imports
from mainspring.log import contract
from mainspring.log.blocking_log import BlockingLog
from mainspring.log.contract import *  # noqa: F403
from mainspring.log.engines.memory import MemoryEngine, SharedMemory, SharedMemoryEngine
from mainspring.log.engines.registry import engine_factory, open_engine
from mainspring.log.engines.sqlite import SqliteEngine, backup, log_file
from mainspring.log.log import Log
from mainspring.log.log_clock import LogClock
from mainspring.log.unreadable import SET_ASIDE, Reader, Unreadable, find_unreadable

if TYPE_CHECKING:
    from mainspring.log.comparison import Parting as Parting
    from mainspring.log.comparison import compare_logs as compare_logs
    from mainspring.log.contents import Survey as Survey
    from mainspring.log.contents import survey as survey
    from mainspring.log.engines.registry import inspect_log as inspect_log
    from mainspring.log.engines.sqlite.check import CheckReport as CheckReport
    from mainspring.log.engines.sqlite.check import check as check
    from mainspring.log.engines.sqlite.recover import Recovery as Recovery
    from mainspring.log.engines.sqlite.recover import recover as recover
    from mainspring.log.engines.sqlite.upkeep import Upgrade as Upgrade
    from mainspring.log.engines.sqlite.upkeep import upgrade as upgrade
    from mainspring.log.export_import import MOST_LINE as MOST_LINE
    from mainspring.log.export_import import LogExport as LogExport
    from mainspring.log.export_import import Moved as Moved
    from mainspring.log.export_import import check_lines as check_lines
    from mainspring.log.export_import import import_lines as import_lines

_HOMES: Final = {
    "mainspring.log.engines.registry": "inspect_log",
    "mainspring.log.engines.sqlite.check": "CheckReport check",
    "mainspring.log.engines.sqlite.recover": "Recovery recover",
    "mainspring.log.engines.sqlite.upkeep": "Upgrade upgrade",
    "mainspring.log.export_import": "MOST_LINE LogExport Moved check_lines import_lines",
    "mainspring.log.comparison": "Parting compare_logs",
    "mainspring.log.contents": "Survey survey",
}
__all__ = [
    *contract.__all__,
    "BlockingLog",
    "SET_ASIDE",
    "Log",
    "LogClock",
    "MemoryEngine",
    "Reader",
    "SharedMemory",
    "SharedMemoryEngine",
    "SqliteEngine",
    "Unreadable",
    "backup",
    "engine_factory",
    "find_unreadable",
    "log_file",
    "open_engine",
]
__getattr__ = lazy_imports(globals(), _HOMES)
