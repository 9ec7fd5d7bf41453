"""Durable runs: programs that survive the process, because every answer is in the log before they go on.

- `durable_runs`: the durable side of a runtime: finding runs, going on with them, letting go of them
- `starting`: how a run begins, or turns out to exist
- `state`: the journal of one run: replay, answers, the end
- `records`: what is in the log, and how a journal is compared with a program
- `store`: reading runs: one, many, and everything needed to go on with them
- `listing`: runs for people: the newest first, counted, and what each waits for
- `writer`: gathers the writes of all runs into few commits
- `signals`: signals and requests to cancel, fail or retry, through the log
- `questions`: queries and updates of live runs
- `blocked`: runs whose journal does not fit their program
- `recovery`: going on with unfinished runs, removing old ones
- `operations`: what people do to runs: retry and fork
- `replay_check`: whether the program of today fits the journals of yesterday
"""

from mainspring.runs.durable.listing import RunListing, RunSelection
from mainspring.runs.durable.records import (
    JOURNAL,
    JOURNAL_READERS,
    LIVE,
    PROGRESS,
    RECORD_READERS,
    RUNS,
    SIGNALS,
    UPDATES,
    check_id,
    ended_runs,
    entry_key,
)
from mainspring.runs.durable.store import RunStore
from mainspring.runs.values import error_fields, reason_json

__all__ = [
    "JOURNAL",
    "JOURNAL_READERS",
    "LIVE",
    "PROGRESS",
    "RECORD_READERS",
    "RUNS",
    "SIGNALS",
    "UPDATES",
    "RunListing",
    "RunSelection",
    "RunStore",
    "check_id",
    "ended_runs",
    "entry_key",
    "error_fields",
    "reason_json",
]
