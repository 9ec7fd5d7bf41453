"""The pages of tasks and schedules, with a program whose tasks and schedules really fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.support.dashboard_site import Opener, call, url_of
from tests.support.serving import serving
from tests.support.terminal import until

PHONE = {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"}
PROGRAM = """
import asyncio
from pathlib import Path
from mainspring import App, TaskContext

app = App("shop")

@app.task(max_attempts=1)
async def mail(to: str, *, subject: str = "hello") -> str:
    if not Path(UP).exists():
        raise ConnectionError(f"no way to {to}")
    return f"sent to {to}"

@app.task
async def render(pages: int, task: TaskContext) -> None:
    task.progress({"of": pages})
    await asyncio.Event().wait()

@app.cron("0 4 1 1 *", max_attempts=1)
async def yearly() -> None:
    raise ValueError("no numbers for last year")
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "shop.py").write_text(PROGRAM.replace("UP", repr(str(folder / "up"))))
    with serving(folder, "shop:app", env={"PYTHONPATH": str(folder)}) as started:
        yield url_of(started), folder


def enqueue(url: str, task: str, *args: object) -> None:
    assert call(url, f"/topics/tasks.shop.{task}/events", {"payload": {"args": args}})[0] == 201


def counted(url: str, task: str) -> dict[str, int]:
    return next(each for each in call(url, "/tasks")[1]["tasks"] if each["task"] == f"shop.{task}")


def test_a_call_that_failed_is_found_understood_retried_and_another_discarded(
    node: tuple[str, Path], dashboard: Opener
) -> None:
    url, folder = node
    for to in ("ada", "bob"):
        enqueue(url, "mail", to)
    until(lambda: counted(url, "mail")["failed"] == 2)
    page = dashboard(url, "tasks")
    row = page.row("Tasks", "shop.mail")
    expect(row).to_contain_text("2")
    row.get_by_role("link", name="2", exact=True).click()
    expect(page.rows("Calls")).to_have_count(2)
    page.row("Calls", "no way to ada").click()
    detail = page.page.locator(".detail")
    detail.get_by_text("ConnectionError: no way to ada").first.wait_for()
    (folder / "up").touch()
    detail.get_by_role("button", name="Retry").click()
    page.toast("1 call was sent back.")
    detail.get_by_text('"sent to ada"').wait_for()
    page.button("Retry 1 failed…").wait_for()
    page.button("Discard them…").click()
    page.button("Discard 1 call").click()
    page.toast("1 call was discarded.")
    page.open("tasks/shop.mail")
    page.row("Calls", "discarded").wait_for()
    page.row("Calls", "done").wait_for()
    assert counted(url, "mail")["failed"] == 0


def test_a_running_call_shows_its_progress_and_is_cancelled(node: tuple[str, Path], dashboard: Opener) -> None:
    url, _ = node
    enqueue(url, "render", 7)
    until(lambda: counted(url, "render")["running"] == 1)
    page = dashboard(url, "tasks/shop.render?state=running", **PHONE)
    page.row("Calls", "7").click()
    page.page.locator(".detail").get_by_text('"of"').wait_for()
    page.page.locator(".detail").get_by_role("button", name="Cancel").click()
    page.toast("1 call was cancelled.")
    until(lambda: counted(url, "render")["cancelled"] == 1)


def test_a_schedule_that_failed_comes_first_and_says_why(node: tuple[str, Path], dashboard: Opener) -> None:
    url, _ = node
    assert call(url, "/schedules", {"name": "aaa", "topic": "pings", "payload": {}, "every": 3_600_000})[0] == 201
    page = dashboard(url, "schedules")
    page.row("Schedules", "yearly").get_by_role("button", name="Run now").click()
    page.toast("app/shop/yearly was run.")
    expect(page.rows("Schedules").first).to_contain_text("failed")
    page.rows("Schedules").first.click()
    page.page.locator(".detail").get_by_text("ValueError: no numbers for last year").first.wait_for()
    page.see("2 schedules, 1 failed last time.")
    page.page.locator(".detail").get_by_role("button", name="Pause").click()
    page.page.locator(".detail").get_by_text("paused", exact=True).wait_for()
    name = "/schedules/app%2Fshop%2Fyearly"
    assert call(url, name)[1]["paused"] is True
    page.page.locator(".detail").get_by_role("button", name="Resume").click()
    page.toast("app/shop/yearly goes on.")


def test_a_schedule_of_a_client_is_deleted(node: tuple[str, Path], dashboard: Opener) -> None:
    url, _ = node
    assert (
        call(url, "/schedules", {"name": "bbb", "topic": "pings", "payload": {"n": 1}, "cron": "0 5 * * *"})[0] == 201
    )
    page = dashboard(url, "schedules/bbb", **PHONE)
    detail = page.page.locator(".detail")
    detail.get_by_text("by a client").wait_for()
    detail.get_by_role("button", name="Delete…").click()
    page.button("Delete it").click()
    page.toast("bbb was deleted.")
    assert call(url, "/schedules/bbb")[0] == 404
