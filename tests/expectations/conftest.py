"""What a user of Celery, FastAPI, Temporal or DBOS expects, one story each, in a simulation and in a real node.

    async def test_a_refused_command_gives_its_code(start: Start) -> None:
        async with start(shop()) as node:
            await node.command("Order.Place", {"sku": "pen"})

`start` gives a node with the same verbs (`tests/support/running_node.py`) whether it is simulated or served. Given an
App, the real node lives in the test's process, so the story may look at the App's variables. Given a function of the
test's module that makes the App, the real node is a `mainspring serve` process: only such a story may `crash` it, and
it sees what happened through topics, replies and runs alone. Settings follow by name: `start(app, max_attempts=2)`.

A story that needs hours, or says that something does not happen, takes `mainspring.testing.simulate` by itself.

| file | who expects it | what |
|---|---|---|
| `test_commands.py` | FastAPI | replies, errors with their code, concurrency, order by key, supervision if asked for |
| `test_threads.py` | FastAPI, Celery, Django | plain `def` may block anywhere; context variables travel |
| `test_declarations.py` | FastAPI | mistakes are refused when the program is read, with file and line |
| `test_pydantic.py` | FastAPI | models wherever a type may stand |
| `test_dependencies.py` | FastAPI | a session per call, by type hint |
| `test_middleware.py` | FastAPI, Celery | code around every handler |
| `test_in_process.py` | FastAPI | the verbs of a client in the node's own process |
| `test_durations.py` | everybody | one way to write time |
| `test_consumers.py` | Celery, Kafka | retries, dead letters, redrive to the group that gave up |
| `test_consumer_groups.py` | Kafka, NATS | every consumer gets every event |
| `test_batches.py` | Kafka, SQS | many events at once |
| `test_patterns.py` | NATS, RabbitMQ | `orders.*`, for consumers and clients |
| `test_limits.py` | Celery, BullMQ | events per second, at a time, of a key, over all workers |
| `test_retries.py` | Celery | which errors, how often, how long; `Reject` |
| `test_events_that_expire.py` | RabbitMQ, SQS | `ttl` |
| `test_process_ends.py` | Celery, Temporal | a handler that kills its process is counted |
| `test_message_retries.py` | RabbitMQ, NATS | messages that fail, durable timers |
| `test_tasks.py` | Celery, DBOS | any signature, results, priorities, chains, groups and chords |
| `test_task_calls.py` | Flower | looking at calls, retrying, cancelling |
| `test_schedules.py` | Celery beat, cron | time zones, overlap, jitter; pause, resume, run now |
| `test_runs.py` | Temporal, DBOS | workflows go on after a crash; progress, cancelling |
| `test_run_failures.py` | Temporal, DBOS | `try/except`, compensation, also after a crash |
| `test_run_steps.py` | DBOS, Temporal | ordinary functions as steps |
| `test_run_ids.py` | Temporal | one id, one run |
| `test_run_deploys.py` | Temporal | code that does not fit blocks a run; early signals; a program that is gone |
| `test_run_questions.py` | Temporal | queries and updates of live runs |
| `test_run_clients.py` | Temporal | runs from outside, by their functions |
| `test_finding_runs.py` | Temporal | filters, counts, what each waits for |
| `test_codec.py` | Temporal | only the program can read its payloads |
| `test_why_it_failed.py` | Sentry, Flower | type, text and traceback of what failed |
| `test_attention.py` | the person on call | what needs somebody |
| `test_tidying.py` | operators | runs, groups and letters that go |
| `test_deleting.py` | Kafka, NATS | topics that are purged and deleted |
| `test_clock_set_back.py` | everybody | a clock that is set back harms nothing |
| `test_testing.py` | pytest | what passes in a simulation passes in a node |
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mainspring import App
from tests.support.running_node import MakeApp, RunningNode, running_node

Start = Callable[..., RunningNode]


@pytest.fixture(params=["simulated", pytest.param("served", marks=pytest.mark.process)])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Start:
    """Start a node of an App, or of a function that makes one."""

    def started(program: App | MakeApp, **settings: Any) -> RunningNode:
        return running_node(request.param, program, tmp_path, settings)

    return started
