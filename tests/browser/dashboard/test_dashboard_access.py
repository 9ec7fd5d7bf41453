"""Who may do what in the dashboard, and what a payload cannot do to it."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.support.dashboard_site import Opener, Tokens, call
from tests.support.shop_day import Shop, aside

EVIL = "<img src=x onerror=\"alert('in')\"><script>alert('in')</script>"


@pytest.fixture(scope="module")
def with_letters(guarded: Tokens) -> Tokens:
    """Dead letters, a run and a timer on the node that wants tokens."""

    async def prepare() -> None:
        shop = await Shop(guarded.url, guarded.admin).open()
        await shop.post("/topics", {"topic": "payments", "maxAttempts": 1})
        await shop.publish("payments", [{"payload": {"n": n}} for n in range(3)])
        await shop.refuse_all("payments", "billing", "card declined", 3)
        await shop.post("/topics", {"topic": "refunds", "maxAttempts": 1})
        await shop.publish("refunds", [{"payload": {"n": 0}}])
        await shop.refuse_all("refunds", "billing", "account closed", 1)
        await shop.message(
            "command",
            "Run.Start",
            {
                "program": "checkout",
                "id": "run-1",
                "args": [{"id": "o", "card": "valid", "total": 1, "wait_ms": 3_600_000}],
            },
        )
        later = {
            "kind": "query",
            "type": "Stock.Count",
            "data": {"sku": "x"},
            "metadata": {"id": "later", "timestamp": 1},
        }
        await shop.message("command", "Timer.Schedule", {"delay": 3_600_000, "message": later})
        await shop.post("/schedules", {"name": "hourly", "topic": "payments", "payload": {}, "every": 3_600_000})
        await shop.session.close()

    aside(prepare())
    return guarded


# --- tokens


def test_a_page_without_a_token_asks_for_one_and_goes_on_with_it(guarded: Tokens, dashboard: Opener) -> None:
    page = dashboard(guarded.url, "topics")
    page.tolerated = ("401",)
    page.page.get_by_role("dialog").wait_for()
    page.button("Cancel").click()
    page.button("Give a token").click()
    page.page.get_by_label("Token").last.fill(guarded.admin)
    page.button("Use it").click()
    page.page.get_by_role("heading", name="Topics").wait_for()
    expect(page.page.locator(".state")).to_have_text("Live")
    expect(page.page.locator(".who")).to_have_text("root")
    assert guarded.admin not in page.page.content()
    assert guarded.admin not in page.page.url


def test_a_wrong_token_is_refused_and_asked_for_again(guarded: Tokens, dashboard: Opener) -> None:
    page = dashboard(guarded.url, token="ms_wrong")
    page.tolerated = ("401",)
    page.page.get_by_role("dialog").get_by_text("The token is not known here").wait_for()


def test_a_read_only_token_sees_everything_and_changes_nothing(with_letters: Tokens, dashboard: Opener) -> None:
    page = dashboard(with_letters.url, "deadletters/payments", token=with_letters.reader)
    page.see("3 events that a group gave up on")
    expect(page.page.locator(".who")).to_have_text("watcher, read-only")
    redrive = page.button("Redrive all…")
    expect(redrive).to_have_attribute("aria-disabled", "true")
    expect(redrive).to_have_attribute(
        "title", "'watcher' may not publish to 'payments': use a token with the scope publish:payments"
    )
    redrive.click(force=True)
    assert page.page.get_by_role("dialog").count() == 0
    page.open("runs/run-1")
    expect(page.button("Cancel…")).to_have_attribute("aria-disabled", "true")
    expect(page.button("Fork…")).to_have_attribute("aria-disabled", "true")
    page.open("timers")
    expect(page.row("Timers", "Stock.Count").get_by_role("button")).to_have_attribute("aria-disabled", "true")
    page.open("schedules")
    for label in ("Run now", "Pause"):
        button = page.row("Schedules", "hourly").get_by_role("button", name=label)
        expect(button).to_have_attribute("aria-disabled", "true")
    page.open("beats")
    expect(page.button("Beat now")).to_have_attribute("aria-disabled", "true")


def test_the_server_refuses_what_the_page_does_not_offer(with_letters: Tokens) -> None:
    url, reader = with_letters.url, with_letters.reader
    assert call(url, "/dlq/payments/redrive", {}, reader)[0] == 403
    command = {"kind": "command", "type": "Run.Cancel", "data": {"id": "run-1"}}
    status, problem = call(url, "/messages", command, reader)
    remedy = "use a token with the scope command:Run.Cancel"
    assert (status, problem["code"], problem["remedy"]) == (403, "forbidden", remedy)
    assert call(url, "/messages", command)[0] == 401
    query = {"kind": "query", "type": "Run.Outcome", "data": {"id": "run-1"}}
    assert call(url, "/messages", query)[0] == 401
    status, reply = call(url, "/messages", query, reader)
    assert (status, reply["data"]["state"]) == (200, "running")
    for path in ("/node", "/messages", "/groups/payments/billing/leases", "/topics/payments/rights"):
        assert call(url, path)[0] == 401
        assert call(url, path, token=reader)[0] == 200


def test_an_admin_redrives(with_letters: Tokens, dashboard: Opener) -> None:
    page = dashboard(with_letters.url, "deadletters/refunds", token=with_letters.admin)
    page.row("Dead letters", "account closed").click()
    page.button("Redrive this one…").click()
    page.button("Redrive").last.click()
    page.toast("1 event sent back to the group that gave up.")


# --- what strangers write


def test_payloads_keys_headers_and_names_are_only_ever_text(shop: str, dashboard: Opener) -> None:
    async def prepare() -> None:
        shopping = await Shop(shop).open()
        events = [{"key": EVIL, "headers": {"h": EVIL}, "payload": {EVIL: [EVIL, {"deep": EVIL}]}}]
        await shopping.publish("strange", events)
        await shopping.message(
            "command",
            "Run.Start",
            {"program": "checkout", "id": EVIL, "args": [{"id": EVIL, "card": "expired", "total": 1}]},
        )
        await shopping.post("/topics", {"topic": "strange", "maxAttempts": 1})
        await shopping.refuse_all("strange", "oddities", EVIL, 1)
        await shopping.session.close()

    aside(prepare())
    page = dashboard(shop, "events?topic=strange")
    page.rows("Events").first.click()
    page.page.locator(".detail").get_by_text(EVIL).first.wait_for()
    page.page.locator(".detail").get_by_role("button", name="Raw").click()
    page.open("deadletters/strange")
    page.rows("Dead letters").first.click()
    page.page.locator(".detail").get_by_text(EVIL).first.wait_for()
    page.open("runs")
    page.row("Runs", "<script>").click()
    page.page.locator(".detail h2").get_by_text(EVIL).wait_for()
    page.open("groups")
    page.row("Groups", "oddities").wait_for()
    page.open(f"trace/{'<script>alert(1)<%2Fscript>'}")
    page.tolerated = ("404",)
    page.see("this message is not known")
    assert page.page.locator("#view img, #view script").count() == 0


def test_a_page_of_a_stranger_gets_nothing_and_does_nothing(shop: str, dashboard: Opener) -> None:
    """The page is one of another address on the same machine: the browser sends its requests, the node refuses them."""
    page = dashboard(shop)
    page.tolerated = ("CORS", "ERR_FAILED", "WebSocket", "403")
    page.page.route(
        "http://127.0.0.2/", lambda route: route.fulfill(body="<h1>a stranger</h1>", content_type="text/html")
    )
    page.page.goto("http://127.0.0.2/")
    done = page.page.evaluate(
        """async (node) => {
            const topic = {topic: "made.by.a.stranger"};
            const message = {kind: "command", type: "Bus.CreateTopic", data: topic};
            const options = {method: "POST", mode: "no-cors"};
            const post = (path, body) => fetch(node + path, {...options, body: JSON.stringify(body)});
            const socket = new WebSocket(node.replace("http", "ws"));
            const opened = await new Promise((tell) => {
                socket.onopen = () => tell(true);
                socket.onerror = () => tell(false);
            });
            const read = await fetch(node + "/node").then((answer) => answer.ok, () => false);
            await post("/messages", message).catch(() => {});
            await post("/topics", topic).catch(() => {});
            return {opened, read};
        }""",
        shop,
    )
    assert done == {"opened": False, "read": False}
    assert call(shop, "/topics/made.by.a.stranger")[0] == 404


def test_the_browser_itself_refuses_markup_scripts_and_strangers(shop: str, dashboard: Opener) -> None:
    page = dashboard(shop)
    page.tolerated = ("Content Security Policy", "Trusted", "Refused", "violates", "Failed to fetch")
    tried = page.page.evaluate(
        """async () => {
            const tries = {
                markup: () => { document.body.innerHTML = "<b>x</b>"; return document.querySelector("body > b"); },
                inline: () => {
                    const script = document.createElement("script");
                    script.textContent = "window.ran = 1";
                    document.head.append(script);
                    return window.ran;
                },
                style: () => {
                    document.body.setAttribute("style", "color: rgb(1, 2, 3)");
                    return getComputedStyle(document.body).color === "rgb(1, 2, 3)";
                },
                stranger: async () => (await fetch("http://127.0.0.1:1/")).ok,
            };
            const done = {};
            for (const [name, run] of Object.entries(tries)) {
                try { done[name] = Boolean(await run()); } catch (error) { done[name] = false; }
            }
            return done;
        }"""
    )
    assert tried == {"markup": False, "inline": False, "style": False, "stranger": False}
