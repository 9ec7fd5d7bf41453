"""What each view shows, and what can be done in it, in a real browser on a real node."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request

import pytest
from playwright.sync_api import expect

from tests.support.dashboard_site import Dashboard, Opener, sent
from tests.support.shop_day import Shop, aside


def get(url: str) -> object:
    with urllib.request.urlopen(url) as answer:
        return json.load(answer)


def asked(url: str, type: str, data: object) -> dict[str, object]:
    body = json.dumps({"kind": "query", "type": type, "data": data}).encode()
    request = urllib.request.Request(f"{url}/messages", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        found: dict[str, object] = json.load(answer)["data"]
        return found


def dead_letters(url: str) -> int:
    """How many there are on the whole node."""
    attention = get(f"{url}/attention")
    assert isinstance(attention, dict)
    return sum(need["count"] for need in attention["needs"] if need["kind"] == "dead_letters")


def publish(url: str, topic: str, *payloads: object) -> None:
    async def go() -> None:
        shop = await Shop(url).open()
        await shop.publish(topic, [{"payload": payload} for payload in payloads])
        await shop.session.close()

    aside(go())


# --- overview and topics


def test_the_overview_tells_what_happened_before_it_was_opened(shop: str, dashboard: Opener) -> None:
    page = dashboard(shop)
    page.see("the printer is out of paper")
    page.see("packing of orders")
    chart = page.page.get_by_role("img", name=re.compile("Events per second.*Now: published per second"))
    chart.wait_for()
    shown = chart.evaluate(
        "canvas => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some(v => v)"
    )
    assert shown
    expect(page.page.locator(".nav a", has_text="Dead letters").locator(".badge")).to_have_text(re.compile("[1-9]"))


def test_the_page_of_the_nodes_shows_what_this_one_does(shop: str, dashboard: Opener) -> None:
    loop = dashboard(shop, "nodes").page.get_by_role("region", name="Loop")
    for lane in ("System lane", "User lane", "Completions", "Oldest waits"):
        expect(loop).to_contain_text(lane)
    loop.get_by_role("img", name=re.compile("Turns of the loop per second.*Now: turns per second [0-9]")).wait_for()
    blocked = loop.get_by_role("listitem").filter(has_text=re.compile(r"run year_end blocked it for \d+ ms")).first
    blocked.get_by_text("Stack").click()
    expect(blocked.locator("pre")).to_contain_text("time.sleep(0.4)")


def measured(url: str, topic: str) -> bool:
    """Whether the node's history has something of the topic."""
    history = get(f"{url}/topics/{topic}/history")
    assert isinstance(history, dict)
    return any(point["published"] > 0 for point in history["points"])


def test_a_chart_goes_back_to_before_the_page_was_opened(shop: str, dashboard: Opener) -> None:
    publish(shop, "burst", *range(300))
    while not measured(shop, "burst"):
        time.sleep(0.05)
    page = dashboard(shop, "topics/burst")
    page.see("300 events stored")
    chart = page.page.locator(".chart canvas")
    expect(chart).to_have_attribute("aria-label", re.compile(r"Highest: published per second [1-9]"))
    box = chart.bounding_box()
    assert box is not None
    chart.hover(position={"x": box["width"] - 20, "y": 40})
    expect(page.page.locator(".chart .tip")).to_contain_text("published per second")


def test_a_chart_moves_while_one_looks(shop: str, dashboard: Opener) -> None:
    publish(shop, "pulse", 1)
    page = dashboard(shop, "topics/pulse")
    chart = page.page.locator(".chart canvas")
    expect(chart).to_have_attribute("aria-label", re.compile("Now: published per second 0,"))
    publish(shop, "pulse", *range(500))
    expect(chart).to_have_attribute("aria-label", re.compile("Highest: published per second [1-9][0-9,]"))
    expect(page.page.get_by_role("table", name="Partitions").locator("tbody tr").first).to_contain_text("501")


def test_topics_are_filtered_sorted_and_opened(shop: str, dashboard: Opener) -> None:
    page = dashboard(shop, "topics")
    page.row("Topics", "shipping.labels").wait_for()
    assert page.rows("Topics").filter(has_text="system.").count() == 0
    page.page.get_by_label("Topics of the system").check()
    page.row("Topics", "system.metrics").wait_for()
    page.page.get_by_label("Filter topics by name").fill("ORDER")
    expect(page.rows("Topics")).to_have_count(1)
    page.row("Topics", "orders").click()
    page.see("events stored in 3 partitions")
    page.page.get_by_role("table", name="Groups").get_by_text("packing").wait_for()


# --- events


def test_stored_events_are_paged_by_offset_and_shown_as_json(shop: str, dashboard: Opener) -> None:
    page = dashboard(shop, "events?topic=mail.outbox")
    page.row("Events", "o-00059").click()
    detail = page.page.locator(".detail")
    detail.get_by_text('"currency"').wait_for()
    detail.get_by_text("source", exact=True).wait_for()
    detail.get_by_role("button", name="Raw").click()
    stored = get(f"{shop}/topics/mail.outbox/events/0/60")
    assert isinstance(stored, dict)
    assert json.loads(detail.locator("pre").inner_text()) == stored["payload"]
    page.page.get_by_label("Go to").fill("7")
    page.button("Go").click()
    page.page.locator(".detail", has_text="Event 7").wait_for()
    expect(page.page).to_have_url(re.compile("offset=7"))


def test_without_a_topic_some_are_offered(shop: str, dashboard: Opener) -> None:
    page = dashboard(shop, "events")
    page.see("Which topic?")
    page.page.locator("#view").get_by_role("link", name="orders", exact=True).click()
    page.see("of orders in all 3 partitions, newest first.")


def test_numbers_too_large_for_javascript_are_shown_as_they_are_stored(shop: str, dashboard: Opener) -> None:
    publish(shop, "big", {"n": 12345678901234567890})
    page = dashboard(shop, "events?topic=big")
    page.rows("Events").first.click()
    page.page.locator(".detail").get_by_role("button", name="Raw").click()
    expect(page.page.locator(".detail pre")).to_contain_text("12345678901234567890")


def test_search_reads_the_log_not_the_page(shop: str, dashboard: Opener) -> None:
    publish(shop, "haystack", *[{"straw": n} for n in range(2_500)])
    page = dashboard(shop, "events?topic=haystack")
    page.see("2,500 events of haystack")
    page.page.get_by_label("Search").fill('STRAW":17}')
    page.page.keyboard.press("Enter")
    page.see("1 event with")
    page.see("All 2,500 read.")
    expect(page.rows("Events")).to_have_count(1)
    expect(page.rows("Events").first).to_contain_text("18")


def test_a_search_without_a_hit_says_so(shop: str, dashboard: Opener) -> None:
    page = dashboard(shop, "events?topic=mail.outbox&q=nowhere+to+be+found")
    page.see("Nothing found")
    page.see("0 events with “nowhere to be found”")
    page.page.get_by_label("Search").fill("")
    page.page.keyboard.press("Enter")
    page.row("Events", "o-00059").wait_for()


def test_following_shows_new_events_and_leaves_no_group_behind(shop: str, dashboard: Opener) -> None:
    publish(shop, "ticker", {"n": 1})
    page = dashboard(shop, "events?topic=ticker")
    page.row("Events", '{"n":1}').wait_for()
    follow = page.button("Follow")
    follow.click()
    expect(follow).to_have_attribute("aria-pressed", "true")
    page.until(
        "url => fetch(url).then(a => a.json()).then(({groups}) => groups.some(g => g.members === 1))",
        f"{shop}/groups?topic=ticker",
    )
    publish(shop, "ticker", {"n": 2}, {"n": 3})
    page.row("Events", '{"n":3}').wait_for()
    page.see("3 events of ticker")
    follow.click()
    page.until(
        "url => fetch(url).then(a => a.json()).then(({groups}) => groups.length === 0)", f"{shop}/groups?topic=ticker"
    )


# --- groups and dead letters


def test_a_group_shows_its_lag_and_its_leases(shop: str, dashboard: Opener) -> None:
    page = dashboard(shop, "groups")
    page.row("Groups", "packing").click()
    leases = page.page.get_by_role("table", name="Leases")
    expect(leases.locator("tbody tr")).to_have_count(5)
    expect(leases.locator("tbody tr").first).to_contain_text("leased")
    members = page.page.get_by_role("table", name="Members").locator("tbody tr")
    expect(members).to_have_count(1)
    expect(members.locator("td").last).to_have_text("5")


def test_a_group_is_moved_and_deleted(shop: str, dashboard: Opener) -> None:
    async def leave_one() -> None:
        shopping = await Shop(shop).open()
        async with shopping.session, shopping.session.ws_connect(shop) as socket:
            await socket.send_json(
                {"type": "SUBSCRIBE", "topic": "mail.outbox", "group": "mailer", "from": {"kind": "offset"}}
            )
            while (await socket.receive_json())["type"] != "OK":
                pass

    aside(leave_one())
    page = dashboard(shop, "groups/mail.outbox/mailer")
    expect(page.page.locator(".detail")).to_contain_text("Members0")
    page.button("Move…").click()
    page.page.get_by_label("Where").select_option("latest")
    page.button("Move it").click()
    page.toast("mailer was moved.")
    group = get(f"{shop}/groups/mail.outbox/mailer")
    assert isinstance(group, dict)
    assert group["lag"] == 0
    page.button("Delete…").click()
    page.button("Delete it").click()
    page.toast("mailer was deleted.")


def test_a_topic_is_purged_and_deleted_by_whoever_types_its_name(shop: str, dashboard: Opener) -> None:
    for n in range(3):
        sent(shop, "Bus.Publish", {"topic": "scrap", "payload": n})
    page = dashboard(shop, "topics/scrap")
    page.see("3 events stored in 1 partition.")
    page.button("Purge…").click()
    page.page.get_by_label("Type its name").fill("scrp")
    page.button("Purge it").click()
    page.toast("Nothing was done: the name is scrap.")
    page.button("Purge…").click()
    page.page.get_by_label("Type its name").fill("scrap")
    page.button("Purge it").click()
    page.toast("3 events were removed.")
    page.see("0 events stored in 1 partition.")
    page.button("Delete…").click()
    page.page.get_by_label("Type its name").fill("scrap")
    page.button("Delete it").click()
    page.toast("scrap was deleted.")
    page.row("Topics", "orders").wait_for()
    expect(page.row("Topics", "scrap")).to_have_count(0)


def test_dead_letters_say_why_and_are_sent_again(shop: str, dashboard: Opener) -> None:
    page = dashboard(shop, "deadletters")
    page.row("Topics with dead letters", "payments").click()
    page.see("6 events that a group gave up on")
    page.row("Dead letters", "card declined").click()
    page.page.locator(".detail").get_by_text("billing", exact=True).first.wait_for()
    page.page.keyboard.press("Escape")
    page.rows("Dead letters").nth(1).locator("input").click()
    page.rows("Dead letters").nth(2).locator("input").click()
    page.button("Redrive 2 marked").click()
    page.button("Redrive").last.click()
    page.toast("2 events sent back to the group that gave up.")
    page.see("4 events that a group gave up on")


def test_dead_letters_are_dropped_after_a_question_that_counts_them(shop: str, dashboard: Opener) -> None:
    async def refuse() -> None:
        shopping = await Shop(shop).open()
        await shopping.post("/topics", {"topic": "parcels", "maxAttempts": 1})
        await shopping.publish("parcels", [{"payload": payload} for payload in range(3)])
        await shopping.refuse_all("parcels", "desk", "lost", 3)
        await shopping.session.close()

    aside(refuse())
    page = dashboard(shop, "deadletters/parcels")
    page.see("3 events that a group gave up on")
    badge = page.page.locator(".nav a", has_text="Dead letters").locator(".badge")
    before = dead_letters(shop)
    expect(badge).to_have_text(str(before))
    page.rows("Dead letters").first.locator("input").click()
    page.button("Drop 1 marked…").click()
    page.page.get_by_role("dialog").get_by_text("Drops 1 dead letter.").wait_for()
    page.button("Drop").last.click()
    page.toast("1 dead letter dropped.")
    expect(page.rows("Dead letters")).to_have_count(2)
    page.button("Drop all…").click()
    page.page.get_by_role("dialog").get_by_text("Drops all 2 dead letters.").wait_for()
    page.button("Drop").last.click()
    page.toast("2 dead letters dropped.")
    page.see("No dead letters")
    expect(badge).to_have_text(str(before - 3))


def test_where_nothing_died_nothing_can_be_sent_again(shop: str, dashboard: Opener) -> None:
    page = dashboard(shop, "deadletters/inventory.changes")
    page.see("No dead letters")
    assert page.button("Redrive all…").count() == 0


def test_what_dies_while_one_looks_is_added_at_the_end(shop: str, dashboard: Opener) -> None:
    async def refuse(*payloads: int) -> None:
        shopping = await Shop(shop).open()
        await shopping.post("/topics", {"topic": "returns", "maxAttempts": 1})
        await shopping.publish("returns", [{"payload": payload} for payload in payloads])
        await shopping.refuse_all("returns", "desk", "no receipt", len(payloads))
        await shopping.session.close()

    aside(refuse(1, 2))
    page = dashboard(shop, "deadletters/returns")
    page.see("2 events that a group gave up on")
    page.rows("Dead letters").nth(1).locator("input").click()
    aside(refuse(3))
    page.see("3 events that a group gave up on")
    page.button("Redrive 1 marked").wait_for()  # the mark stays


def test_a_dead_letter_is_told_of_at_once(shop: str, dashboard: Opener) -> None:
    page = dashboard(shop, "kernel")
    expect(page.page.locator(".state")).to_have_text("Live")
    badge = page.page.locator(".nav a", has_text="Dead letters").locator(".badge")
    before = dead_letters(shop)
    expect(badge).to_have_text(str(before))

    async def refuse() -> None:
        shopping = await Shop(shop).open()
        await shopping.post("/topics", {"topic": "refunds", "maxAttempts": 1})
        await shopping.publish("refunds", [{"payload": 1}])
        await shopping.refuse_all("refunds", "clerk", "no receipt", 1)
        await shopping.session.close()

    aside(refuse())
    expect(badge).to_have_text(str(before + 1))


# --- kernel, timers, causation


def test_the_kernel_shows_actors_open_requests_and_faults(shop: str, dashboard: Opener) -> None:
    page = dashboard(shop, "kernel")
    card = page.page.get_by_role("article", name="Label")
    expect(card).to_contain_text(re.compile(r"[1-9]\d* restart"))  # other tests crash it, too
    page.page.get_by_role("tab", name="Open requests").click()
    page.row("Open requests", "Report.Build").wait_for()
    page.page.get_by_role("tab", name="Faults").click()
    page.row("Faults", "out of paper").wait_for()


def test_a_capability_that_was_given_up_can_be_started_again(shop: str, dashboard: Opener) -> None:
    asked = {"kind": "command", "type": "Scale.Weigh", "data": {"sku": "elephant"}}
    headers = {"Content-Type": "application/json"}
    with pytest.raises(urllib.error.HTTPError, match="500"):
        urllib.request.urlopen(urllib.request.Request(f"{shop}/messages", json.dumps(asked).encode(), headers))
    page = dashboard(shop, "kernel")
    card = page.page.get_by_role("article", name="Scale")
    expect(card).to_contain_text("unhealthy")
    card.get_by_role("button", name="Start again").click()
    expect(card).to_contain_text("running")
    expect(card.get_by_role("button", name="Start again")).to_be_hidden()


def test_a_message_can_be_sent_and_its_answer_is_shown(shop: str, dashboard: Opener) -> None:
    page = dashboard(shop, "kernel?tab=ask")
    page.until("() => document.querySelector('#view select')?.options.length > 20")
    page.page.get_by_label("Type").select_option("Order.Place")
    page.see("Take an order, reserve its goods")
    data = page.page.get_by_label("Data (JSON)")
    expect(data).to_have_value(re.compile('"customer": ""'))
    data.fill('{"id": "o-9", "customer": "c-9", "total": 0}')
    page.button("Send").click()
    page.see("an order costs something")
    page.tolerated = ("422",)
    data.fill('{"id": "o-9", "customer": "c-9", "total": 5}')
    page.button("Send").click()
    page.page.locator("#view").get_by_text('"placed"', exact=True).wait_for()
    page.page.get_by_role("link", name="What it caused").click()
    tree = page.page.get_by_role("tree", name="Causation tree")
    tree.wait_for()
    said = tree.get_by_role("treeitem").all_inner_texts()
    assert [text for text in said if "Stock.Reserve" in text]
    assert [text for text in said if "Order.Placed" in text]
    assert [text for text in said if text.startswith("event") and "orders" in text]  # what it stored in the topic
    tree.get_by_role("treeitem").first.focus()
    page.page.keyboard.press("ArrowDown")
    assert page.page.evaluate("document.activeElement.getAttribute('aria-level')") == "2"


def test_what_the_program_brings_comes_first_and_its_data_is_laid_out(shop: str, dashboard: Opener) -> None:
    page = dashboard(shop, "kernel")
    page.page.get_by_role("article", name="Bus").wait_for()
    names = page.page.get_by_role("article").evaluate_all("all => all.map((each) => each.getAttribute('aria-label'))")
    assert names.index("Order") < names.index("Syscall")
    page.page.get_by_role("tab", name="Ask").click()
    page.until("() => document.querySelector('#view select')?.options.length > 20")
    groups = page.page.locator("#view optgroup").evaluate_all("all => all.map((each) => each.label)")
    assert groups == ["Of the program", "Of every node"]
    page.page.get_by_label("Type").select_option("Order.Place")
    data = page.page.get_by_label("Data (JSON)")
    expect(data).to_have_value('{\n  "id": "",\n  "customer": "",\n  "total": 0\n}')
    data.fill('{"sku": "mine"}')
    page.page.get_by_label("Type").select_option("Stock.Count")
    page.see("How many of an article there are.")
    expect(data).to_have_value('{"sku": "mine"}')  # what somebody wrote stays


def test_an_event_that_several_read_is_listed_once(shop: str, dashboard: Opener) -> None:
    page = dashboard(shop, "trace")
    page.rows("Messages that passed lately").first.wait_for()
    shown = page.rows("Messages that passed lately").evaluate_all(
        "all => all.map((row) => row.children[3]?.textContent).filter(Boolean)"
    )
    assert len(shown) > 5
    assert len(shown) == len(set(shown))


def test_what_the_page_itself_asks_is_shown_on_request(shop: str, dashboard: Opener) -> None:
    page = dashboard(shop, "runs/checkout-0003")
    expect(page.rows("Timeline")).to_have_count(4)
    page.open("trace")
    passed = page.rows("Messages that passed lately")
    passed.first.wait_for()
    expect(passed.filter(has_text=re.compile(r"Run\.(List|Count|Programs|History|Outcome)"))).to_have_count(0)
    page.page.get_by_label("Without what this page asks").uncheck()
    page.row("Messages that passed lately", "Run.Count").wait_for()


def test_an_unknown_message_has_no_tree_and_says_so(shop: str, dashboard: Opener) -> None:
    page = dashboard(shop, "trace/nobody")
    page.tolerated = ("404",)
    page.see("this message is not known")


def test_a_timer_is_cancelled(shop: str, dashboard: Opener) -> None:
    page = dashboard(shop, "timers")
    page.row("Timers", "Stock.Reserve").get_by_role("button", name="Cancel").click()
    page.toast("Stock.Reserve will not be sent.")
    assert asked(shop, "Timer.List", {})["total"] == 0


def test_a_schedule_is_run_paused_and_resumed(shop: str, dashboard: Opener) -> None:
    page = dashboard(shop, "schedules")
    row = page.row("Schedules", "nightly-report")
    row.get_by_role("button", name="Run now").click()
    page.toast("nightly-report was run.")
    cut = "all => all.filter((each) => each.parentElement.scrollWidth > each.parentElement.clientWidth).length"
    assert row.get_by_role("button").evaluate_all(cut) == 0
    row.get_by_role("button", name="Pause").click()
    row.get_by_text("paused", exact=True).wait_for()
    (known,) = [each for each in asked(shop, "Bus.Schedules", {})["schedules"] if each["name"] == "nightly-report"]
    assert known["paused"]
    row.get_by_role("button", name="Resume").click()
    row.get_by_role("button", name="Pause").wait_for()


# --- runs and beats


def test_a_run_is_a_timeline_and_can_be_forked_and_cancelled(shop: str, dashboard: Opener) -> None:
    page = dashboard(shop, "runs")
    page.row("Runs", "checkout-0003").click()
    steps = page.rows("Timeline")
    expect(steps).to_have_count(4)
    expect(steps.nth(2)).to_contain_text("Ship")
    steps.nth(2).click()
    page.page.locator(".detail").get_by_text('"carrier"').first.wait_for()
    page.button("Fork after this step…").click()
    page.page.get_by_label("Id of the new run").fill("again-1")
    page.button(
        "Fork",
    ).last.click()
    page.toast("again-1 has begun.")
    page.page.locator(".detail").get_by_text("checkout-0003, after 3 answers").wait_for()

    page.open("runs/checkout-0005")
    page.button("Cancel…").click()
    page.page.get_by_label("Reason").fill("the customer called")
    page.button("Cancel the run").click()
    page.toast("checkout-0005 is being cancelled.")
    page.see("the customer called")
    assert asked(shop, "Run.Outcome", {"id": "checkout-0005"})["state"] == "cancelled"


def test_a_finished_run_is_forgotten(shop: str, dashboard: Opener) -> None:
    sent(shop, "Run.Start", {"program": "approval", "id": "to-be-forgotten"})
    page = dashboard(shop, "runs/to-be-forgotten")
    page.button("Cancel…").wait_for()
    expect(page.button("Forget…")).to_have_count(0)  # it is not over
    sent(shop, "Run.Cancel", {"id": "to-be-forgotten"})
    page.button("Forget…").click()
    page.button("Forget the run").click()
    page.toast("1 run was forgotten.")
    assert asked(shop, "Run.List", {"prefix": "to-be-forgotten"})["runs"] == []


def test_an_open_run_is_followed_to_its_end(shop: str, dashboard: Opener) -> None:
    sent(shop, "Run.Start", {"program": "approval", "id": "approval-1"})
    page = dashboard(shop, "runs/approval-1")
    detail = page.page.locator(".detail")
    expect(page.rows("Timeline")).to_have_count(1)
    page.rows("Timeline").first.click()
    expect(detail.locator(".step")).to_contain_text("receipt for 1")
    page.button("Cancel…").focus()
    sent(shop, "Run.Signal", {"id": "approval-1", "name": "approved", "value": "by Grace"})
    expect(detail.get_by_text("done", exact=True)).to_be_visible()
    expect(page.rows("Timeline").nth(1)).to_contain_text("WaitSignal")
    expect(detail).to_contain_text("by Grace")
    expect(detail.locator(".step")).to_contain_text("receipt for 1")  # the step that was open still is


def test_runs_are_filtered_by_state(shop: str, dashboard: Opener) -> None:
    page = dashboard(shop, "runs?state=failed&prefix=checkout")
    page.row("Runs", "checkout-0004").click()
    expect(page.rows("Runs")).to_have_count(1)
    page.page.locator(".detail").get_by_text("the card has expired").first.wait_for()
    page.page.locator(".detail").get_by_role("button", name="Retry").wait_for()


def test_a_beat_shows_agenda_staged_values_and_the_chain_of_digests(shop: str, dashboard: Opener) -> None:
    page = dashboard(shop, "beats/1")
    detail = page.page.locator(".detail")
    expect(detail.get_by_role("table", name="Agenda")).to_contain_text("resize")
    detail.get_by_text("/thumbnails/photos/2026/img", exact=False).first.wait_for()
    digest = asked(shop, "Beat.Read", {"path": "/rt/beat/1/digest"})["value"]
    assert isinstance(digest, str)
    expect(detail.locator(".chain .this")).to_have_text(digest)
    expect(detail.locator(".chain")).to_contain_text("the beginning")
    page.open("beats/2")
    expect(detail.locator(".chain")).to_contain_text(digest)
    page.page.get_by_role("grid", name="Beats").focus()
    page.page.keyboard.press("End")
    page.row("Beats", digest[:40]).wait_for()
    page.page.get_by_label("Path").fill("/index")
    page.button("Read").click()
    detail.get_by_text("img11.jpg", exact=False).first.wait_for()


def test_beats_are_paused_and_signals_wait(shop: str, dashboard: Opener) -> None:
    page = dashboard(shop, "beats")
    page.button("Pause").click()
    page.button("Resume").wait_for()
    page.button("Signal…").click()
    page.page.get_by_label("Signal").last.fill("/signals/index/update")
    page.button("Send").click()
    page.see("paused")
    page.button("Resume").click()
    page.button("Pause").wait_for()


def test_every_view_opens_without_a_complaint(shop: str, dashboard: Opener) -> None:
    page: Dashboard = dashboard(shop)
    for view in (
        "nodes",
        "topics",
        "topics/orders",
        "events",
        "groups",
        "deadletters",
        "kernel",
        "timers",
        "trace",
        "runs",
        "beats",
        "",
    ):
        page.open(view)
    page.open("nowhere")
    page.see("There is no such view.")
