from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from outbox.postgres import Postgres, running_postgres
from outbox.world import KINDS, Shop, sqlite_shop

# MongoDB is tested where there is one. Debian has no package of it, so it cannot be demanded everywhere: without one
# the file is left out, as docs/how-to/outbox.md says.
collect_ignore = [] if os.environ.get("MONGO_URL") or shutil.which("mongod") else ["test_outbox_mongo.py"]


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def new_database(postgres: Postgres) -> Callable[[], str]:
    """Makes an empty database; gives its address."""
    numbers = itertools.count(1)

    def make() -> str:
        name = f"shop{next(numbers)}"
        with psycopg.connect(postgres.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return postgres.url(name)

    return make


@pytest.fixture(params=KINDS)
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Shop:
    """A program's database, in each kind."""
    if request.param == "sqlite":
        return sqlite_shop(tmp_path)
    return Shop("postgresql", request.getfixturevalue("new_database")())
