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
| `test_commands.py` | FastAPI | replies, errors with their code, plain `def`, concurrency |
| `test_consumers.py` | Celery, Kafka | groups, retries, dead letters, redrive |
| `test_tasks.py` | Celery, DBOS | enqueue, retries, delays, results |
| `test_schedules.py` | Celery beat | intervals, cron |
| `test_runs.py` | Temporal, DBOS | steps, signals, timeouts, crashes, compensation |
| `test_run_deploys.py` | Temporal | code that does not fit blocks a run; early signals; a program that is gone |
| `test_durations.py` | everybody | one way to write time |
| `test_declarations.py` | FastAPI | mistakes are refused when the program is read, with the line |
| `test_run_clients.py` | Temporal | runs from outside, by their functions |
| `test_middleware.py` | FastAPI, Celery | code around every handler |
| `test_pydantic.py` | FastAPI | models wherever a type may stand |
| `test_run_questions.py` | Temporal | queries and updates of live runs |
| `test_in_process.py` | FastAPI | the verbs of a client in the node's own process |
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
