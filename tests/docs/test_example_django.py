"""The Django example as its README says: rows and events are one transaction, and the admin has the links.

On SQLite with Django's own server, or inside gunicorn's workers, and on a real PostgreSQL under `gunicorn --preload`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from tests.support.nats_server import free_port
from tests.support.paths import ROOT
from tests.support.postgres import shared_postgres
from tests.support.processes import eventually
from tests.support.serving import PATIENCE_S, Serving, clean_environment

pytest.importorskip("django")
EXAMPLE = ROOT / "examples" / "django_shop"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    given = {"SHOP_DATA": str(tmp_path), "SHOP_NODE_PORT": str(free_port()), "PYTHONDONTWRITEBYTECODE": "1"}
    return clean_environment(given)


def manage(environment: dict[str, str], *arguments: str) -> str:
    command = [sys.executable, "manage.py", *arguments]
    done = subprocess.run(
        command, cwd=EXAMPLE, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def running(environment: dict[str, str], *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, *arguments], cwd=EXAMPLE, env=environment)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, environment: dict[str, str]) -> Iterator[str]:
    if request.param == "sqlite":
        yield "sqlite"
        return
    server, name = shared_postgres(), f"django_{os.getpid()}"
    with psycopg.connect(server.url("postgres"), autocommit=True) as sql:
        sql.execute(f"CREATE DATABASE {name}")
        environment["DATABASE_URL"] = server.url(name)
        yield "postgresql"
        sql.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_an_order_and_its_event_are_one_transaction(environment: dict[str, str], database: str) -> None:
    manage(environment, "migrate", "-v", "0")
    assert "No changes detected" in manage(environment, "makemigrations", "--check", "--dry-run")
    url = f"http://127.0.0.1:{(port := free_port())}"
    served = ["manage.py", "runserver", "--noreload", f"127.0.0.1:{port}"]
    if database == "postgresql":
        served = [
            "-m",
            "gunicorn",
            "--preload",
            "--no-control-socket",
            "-w",
            "2",
            "-b",
            f"127.0.0.1:{port}",
            "shop.wsgi",
        ]
    with running(environment, *served), httpx.Client(timeout=30) as web:

        def answers() -> bool:
            try:
                return web.get(f"{url}/orders/0").status_code >= 400
            except httpx.TransportError:
                return False

        eventually(answers, "the web server")

        def state(number: int) -> Any:
            return web.get(f"{url}/orders/{number}").json()["state"]

        first = web.post(f"{url}/orders", json={"customer": "ada", "sku": "pen"})
        assert (first.status_code, first.json()) == (201, {"order": 1})
        assert web.post(f"{url}/orders", json={"customer": "bob", "sku": "gone"}).status_code == 500
        assert state(1) == "placed"  # there is no node yet: the event waits with its order
        with running(environment, "manage.py", "mainspring") as node:
            eventually(lambda: state(1) == "billed", "the first order to be billed")
            assert web.get(f"{url}/count").json() == {"orders": 1}
            node.kill()
        second = web.post(f"{url}/orders", json={"customer": "eve", "sku": "cup"})
        assert second.status_code == 201
        with running(environment, "manage.py", "mainspring"):
            eventually(lambda: state(second.json()["order"]) == "billed", "the second order to be billed")
            assert web.get(f"{url}/count").json() == {"orders": 2}  # the client found the new node
        if database == "postgresql":
            waits = "from mainspring.contrib.django.models import OutboxEvent; print(OutboxEvent.objects.count())"
            assert manage(environment, "shell", "-v", "0", "-c", waits).strip() == "0"  # nothing had to be carried


def test_web_processes_are_the_node_themselves_and_one_takes_over_from_the_other(environment: dict[str, str]) -> None:
    manage(environment, "migrate", "-v", "0")
    url = f"http://127.0.0.1:{(port := free_port())}"
    served = ["-m", "gunicorn", "-c", "gunicorn_embedded.py", "--no-control-socket", "-w", "3"]
    with (
        running(environment, *served, "-b", f"127.0.0.1:{port}", "shop.wsgi") as parent,
        httpx.Client(timeout=PATIENCE_S) as web,
    ):

        def answer(method: str, path: str, **options: Any) -> httpx.Response | None:
            try:
                return web.request(method, url + path, **options)
            except httpx.TransportError:  # the worker that had the request is gone
                return None

        def placed_and_billed(sku: str) -> None:
            found: list[int] = []

            def placed() -> bool:
                answered = answer("POST", "/orders", json={"customer": "ada", "sku": sku})
                if answered is not None and answered.status_code == 201:
                    found.append(answered.json()["order"])
                return bool(found)

            def billed() -> bool:
                answered = answer("GET", f"/orders/{found[0]}")
                return answered is not None and answered.json()["state"] == "billed"

            eventually(placed, "a web process")
            eventually(billed, "the order to be billed")

        placed_and_billed("pen")
        for worker in children(parent.pid):
            os.kill(worker, signal.SIGKILL)  # one of them is the node
            placed_and_billed("cup")


def children(process: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


ADMIN = """
from django.contrib.auth.models import User
from django.db import transaction
from django.test import Client
from mainspring.contrib.django import publish
publish("orders", {"order": 1})
try:
    with transaction.atomic():
        publish("orders", {"order": 2})
        raise ValueError
except ValueError:
    pass
User.objects.create_superuser("ada", password="x")
browser = Client(headers={"host": "127.0.0.1"})
browser.login(username="ada", password="x")
page = browser.get("/admin/mainspring_outbox/outboxevent/").content.decode()
assert page.count('class="field-topic"') == 1, page
for view in ("deadletters", "runs"):
    assert f"/#/{view}" in page, page
print("seen")
"""


def test_the_admin_shows_the_outbox_and_links_to_the_dashboard(environment: dict[str, str]) -> None:
    manage(environment, "migrate", "-v", "0")
    assert "seen" in manage(environment, "shell", "-c", ADMIN)


def test_a_node_that_cannot_start_gives_nothing_to_the_one_that_has_its_port(
    environment: dict[str, str], tmp_path: Path
) -> None:
    manage(environment, "migrate", "-v", "0")
    add = "from mainspring.contrib.django import publish; publish('orders', {'order': 1})"
    manage(environment, "shell", "-v", "0", "-c", add)
    port = environment["SHOP_NODE_PORT"]
    (tmp_path / "other").mkdir()
    with Serving("--port", port, folder=tmp_path / "other"):
        done = subprocess.run(
            [sys.executable, "manage.py", "mainspring"],
            cwd=EXAMPLE,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 1
        assert "address already in use" in done.stderr
        topics = httpx.get(f"http://127.0.0.1:{port}/topics").json()["topics"]
        assert "orders" not in [each["topic"] for each in topics]
    waits = "from mainspring.contrib.django.models import OutboxEvent; print(OutboxEvent.objects.get().state)"
    assert manage(environment, "shell", "-v", "0", "-c", waits).strip() == "0"


def test_a_mistake_in_the_settings_is_found(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text('from shop.settings import *\nMAINSPRING = {"appp": "shop.events:app"}\n')
    done = subprocess.run(
        [sys.executable, "manage.py", "check", "--settings", "wrong"],
        cwd=EXAMPLE,
        env={**environment, "PYTHONPATH": f"{tmp_path}{os.pathsep}{EXAMPLE}"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 1
    assert "unknown setting 'appp'" in done.stderr
