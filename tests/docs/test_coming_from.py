"""What the pages about coming from other libraries show of these libraries, run as their users run it: the blocks saved
under the names they carry, the commands typed, with the real library and a real server.

Only what a reader would change, too, is changed: where the server is, and a day that nobody waits for.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from bench.peers import servers

from tests.docs.test_snippets import FENCE
from tests.support.nats_server import shared_server, wait_until
from tests.support.paths import ROOT
from tests.support.postgres import shared_postgres
from tests.support.serving import clean_environment

PAGES = ROOT / "docs" / "how-to" / "coming-from"
PATIENCE_S = 120.0  # for what must come; nothing is measured


class Reader:
    """Someone with a page's programs in a folder of their own."""

    def __init__(self, page: str, folder: Path, changes: dict[str, str], **env: str) -> None:
        self.folder = folder
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        self.env = {**clean_environment(env), "PATH": path}
        text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
        theirs = text[text.index("Theirs:") : text.index("Ours:")]
        blocks = [(fence["info"].split(), fence["code"]) for fence in FENCE.finditer(theirs)]
        programs = {info[1].removeprefix("file="): code for info, code in blocks if info[0] == "python"}
        for old, new in changes.items():
            assert any(old in code for code in programs.values()), f"{page}.md no longer says {old}"
            programs = {name: code.replace(old, new) for name, code in programs.items()}
        for name, code in programs.items():
            (folder / name).write_text(code, encoding="utf-8")
        self.commands = [
            words for info, lines in blocks if info == ["sh"] for line in lines.splitlines() if (words := _words(line))
        ]

    @contextlib.contextmanager
    def running(self, command: list[str]) -> Iterator[Callable[[], str]]:
        """A command that goes on until the block ends, and must still do so then; gives what it has said so far."""
        said = self.folder / "said.txt"
        with said.open("w") as file:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

        def read() -> str:
            text = said.read_text(errors="replace")
            assert process.poll() is None, f"{command} ended with {process.returncode}\n{text}"
            return text

        try:
            yield read
            read()
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what it started, too
            process.wait()

    def run(self, command: list[str]) -> list[str]:
        """A command that ends by itself: the lines it printed."""
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()


def _words(line: str) -> list[str]:
    return shlex.split(line, comments=True)


@pytest.fixture
async def redis() -> AsyncIterator[str]:
    """The address of a Redis server."""
    if servers.redis_server() is None:
        pytest.skip("there is no redis-server (Debian: apt-get install redis-server)")
    async with servers.redis(always=False) as port:
        yield f"redis://127.0.0.1:{port}"


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_every_block_of_theirs_is_a_program_that_is_run(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    theirs = [fence["info"].split() for fence in FENCE.finditer(text[: text.index("Ours:")])]
    assert theirs
    assert [
        info for info in theirs if info != ["sh"] and not (info[0] == "python" and info[1].startswith("file="))
    ] == []
    assert f"def test_{page.stem}" in Path(__file__).read_text(encoding="utf-8")


# What the beat does at three in the morning, done now: the task is sent by the name that the schedule has.
BEAT = """
from shop import celery
report = celery.conf.beat_schedule["report"]
print(report["schedule"])
print(celery.send_task(report["task"]).get(timeout=60))
"""


def test_celery(tmp_path: Path, redis: str) -> None:
    pytest.importorskip("celery")
    reader = Reader("celery", tmp_path, {"redis://localhost": redis})
    worker, client = reader.commands
    with reader.running(worker) as said:
        wait_until(lambda: " ready." in said() and "beat: Starting" in said(), "the worker and its beat", PATIENCE_S)
        assert reader.run(client) == ["sent to ada", "small cat uploaded"]
        wait_until(lambda: len(re.findall(r"shop\.send_mail\[\S+ received", said())) == 3, "three mails", PATIENCE_S)
        assert reader.run(["python", "-c", BEAT]) == ["<crontab: 0 3 * * * (m/h/dM/MY/d)>", "None"]
        wait_until(
            lambda: any(b"shop.report" in file.read_bytes() for file in tmp_path.glob("celerybeat-schedule*")),
            "the beat to store its schedule",
            PATIENCE_S,
        )


def test_rq(tmp_path: Path, redis: str) -> None:
    rq = pytest.importorskip("rq")
    from redis import Redis

    reader = Reader("rq", tmp_path, {"redis://localhost": redis}, RQ_REDIS_URL=redis)
    worker, client = reader.commands
    with reader.running(worker) as said, Redis.from_url(redis) as connection:
        wait_until(lambda: "Listening on mails" in said(), "the worker", PATIENCE_S)
        assert reader.run(client) == ["sent to ada"]
        queue = rq.Queue("mails", connection=connection)
        places = [queue, queue.scheduled_job_registry, queue.started_job_registry, queue.finished_job_registry]
        jobs = {name for place in places for name in place.get_job_ids()}
        assert sorted(rq.job.Job.fetch(name, connection=connection).args for name in jobs) == [("ada",), ("bob",)]


def test_apscheduler(tmp_path: Path) -> None:
    pytest.importorskip("apscheduler")
    reader = Reader("apscheduler", tmp_path, {})
    stored = tmp_path / "jobs.db"

    def jobs() -> set[str]:
        try:
            with contextlib.closing(sqlite3.connect(f"file:{stored}?mode=ro", uri=True)) as store:
                return {name for (name,) in store.execute("SELECT id FROM apscheduler_jobs")}
        except sqlite3.OperationalError:  # not there yet
            return set()

    with reader.running(["python", "shop.py"]) as said:
        wait_until(lambda: said() is not None and len(jobs()) == 3, "its jobs to be stored", PATIENCE_S)
        assert {"report", "poll"} <= jobs()


# Its functions are due in minutes, at night and tomorrow. Here their times are put on now, in the running scheduler.
DUE_NOW = """
import asyncio, datetime, shop

async def main():
    serving = asyncio.create_task(shop.main())
    while len(shop.scheduler.get_jobs()) < 3:
        await asyncio.sleep(0.01)
    for job in shop.scheduler.get_jobs():
        job.modify(next_run_time=datetime.datetime.now(datetime.UTC), misfire_grace_time=None)
    while len(set(shop.done)) < 3:
        await asyncio.sleep(0.01)
    print(*sorted(set(shop.done)), sep="\\n")

asyncio.run(main())
"""


def test_apscheduler_calls_what_is_due(tmp_path: Path) -> None:
    pytest.importorskip("apscheduler")
    reader = Reader("apscheduler", tmp_path, {})
    assert reader.run(["python", "-c", DUE_NOW]) == ["mail to ada", "poll", "report"]


@pytest.mark.servers
async def test_faststream(tmp_path: Path) -> None:
    pytest.importorskip("faststream")
    nats = pytest.importorskip("nats")
    server = shared_server()
    reader = Reader("faststream", tmp_path, {"nats://localhost:4222": f"nats://{server.host}"})
    connection = await nats.connect(f"nats://{server.host}")
    try:
        bills = await connection.subscribe("bills")
        await connection.flush()
        with reader.running(["python", "shop.py"]):
            assert (await bills.next_msg(timeout=PATIENCE_S)).data == b"bill for ada"
    finally:
        await connection.close()


@pytest.mark.servers
def test_dbos(tmp_path: Path) -> None:
    pytest.importorskip("dbos")
    address = shared_postgres().url(f"shop_{os.getpid()}")
    reader = Reader("dbos", tmp_path, {"postgresql://shop@localhost/shop": address, "86_400": "0.1"})
    assert reader.run(["python", "shop.py"])[-1] == "receipt 1900, thanks"


# No package has Temporal's server, and building it takes ten minutes. So `main` of the page is not called here: the
# activity is, and the workflow is taken as a worker takes it. The interpreter is not taken down: the SDK's threads now
# and then abort one that is, which is a known fault of it.
WITHOUT_A_SERVER = """
import asyncio, os, shop
from temporalio.testing import ActivityEnvironment
from temporalio.worker import Replayer

async def main():
    Replayer(workflows=[shop.Checkout])
    print(await ActivityEnvironment().run(shop.charge, 1900), flush=True)

asyncio.run(main())
os._exit(0)
"""


def test_temporal(tmp_path: Path) -> None:
    pytest.importorskip("temporalio")
    assert Reader("temporal", tmp_path, {}).run(["python", "-c", WITHOUT_A_SERVER]) == ["receipt 1900"]
