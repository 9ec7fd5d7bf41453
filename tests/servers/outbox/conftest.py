from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pymongo import MongoClient

from tests.support.mongo_server import mongo_address
from tests.support.mongo_server import new_database as new_mongo_database
from tests.support.outbox import KINDS, Shop, sqlite_shop
from tests.support.postgres import Postgres, running_postgres

# FerretDB, which stands in where there is no MongoDB, has no transactions.
collect_ignore = [] if os.environ.get("MONGO_URL") or shutil.which("mongod") else ["test_outbox_mongo_transactions.py"]


@pytest.fixture(scope="session")
def address() -> str:
    """Where MongoDB is."""
    return mongo_address()


@pytest.fixture
def database(address: str) -> Iterator[Any]:
    """A database that nobody has used, in MongoDB."""
    client: Any = MongoClient(new_mongo_database())
    found = client.get_default_database()
    yield found
    client.drop_database(found.name)
    client.close()


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
