"""The log: commits, how long they take, what the engine is, and whether it can write."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mainspring.server.metrics.families import PREFIX, counter, gauge, histograms
from mainspring.server.observed import Observed

if TYPE_CHECKING:
    from prometheus_client import Metric


def families(observed: Observed) -> Iterator[Metric]:
    from prometheus_client.core import InfoMetricFamily

    log = observed.log
    if log is None:
        return
    engine = log.engine
    name = str(getattr(engine, "name", type(engine).__name__))
    yield InfoMetricFamily(f"{PREFIX}log_engine", "Where the log rests.", value={"engine": name})
    yield counter("log_commits", "Commits handed to the engine.", log.commits)
    yield counter("log_failed_commits", "Commits the engine could not make.", log.failed_commits)
    yield counter("log_operations", "Operations in those commits.", log.operations)
    yield histograms("log_commit_seconds", "Time until a commit was durable.", (), [((), log.commit_ns)])
    yield histograms("log_commit_batches", "Writers that shared a commit.", (), [((), log.commit_batches)])
    yield gauge("log_fault", "1 while the log cannot write.", log.fault is not None)
    reconnects = getattr(engine, "reconnects", 0)
    yield counter("log_reconnects", "How often the engine found its server again.", reconnects)
    yield from _file(getattr(engine, "path", None))


def _file(path: Path | None) -> Iterator[Metric]:
    """Only an engine with a file can say how large it is, and how much room is left."""
    size = sum(_size(f"{path}{suffix}") for suffix in ("", "-wal")) if path is not None else 0
    yield gauge("log_size_bytes", "Bytes of the log's file and its journal; 0 without a file.", size)
    if path is not None:
        free = shutil.disk_usage(path.parent).free
        yield gauge("log_disk_free_bytes", "Bytes free where the log's file is; absent without a file.", free)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
