"""What /metrics tells is what the reference page says, both ways, whatever the node has done."""

from __future__ import annotations

from typing import Any

from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics

from mainspring.server.metrics import MOST_ROWS, OTHERS, bounded
from mainspring.telemetry import nanoseconds, numbers
from tests.support.metrics import busy, documented, metrics, value
from tests.support.observability import Running


async def test_the_page_and_the_node_name_the_same_metrics_with_the_same_kinds_and_labels(running: Running) -> None:
    await busy(running)
    found, page = await metrics(running), documented()
    assert set(found) == set(page)
    for name, family in found.items():
        kind, labels = page[name]
        assert family.type == kind, name
        seen = {label for sample in family.samples for label in sample.labels} - {"le"}
        assert seen == labels or not family.samples, name


async def test_the_numbers_are_those_of_what_happened(running: Running) -> None:
    await busy(running)
    found = await metrics(running)
    requests = "mainspring_kernel_requests_total"
    assert value(found, requests, type="Order.Place", outcome="reply") == 2
    assert value(found, requests, type="Order.Place", outcome="refused") == 1
    assert value(found, requests, type="Stock.Count", outcome="fault") == 1
    assert value(found, "mainspring_kernel_request_seconds", type="Order.Place") == 3
    assert value(found, "mainspring_kernel_refused_total", error="Sys.RoutingError") == 1
    assert value(found, "mainspring_kernel_faults_total") == 1
    assert value(found, "mainspring_kernel_restarts_total", capability="Stock") == 1
    assert value(found, "mainspring_events_published_total", topic="orders") == 2
    assert value(found, "mainspring_dead_letters_total") == 1
    assert value(found, "mainspring_runs_started_total", kind="durable") == 1
    assert value(found, "mainspring_runs_outcomes_total", kind="durable", outcome="done") == 1
    assert value(found, "mainspring_runs_effects_total", effect="Charge") == 1
    assert value(found, "mainspring_beats_calls_total", result="failed") == 1
    assert value(found, "mainspring_beats_staged_total") == 1
    assert value(found, "mainspring_http_requests_total", route="/messages", status="200") == 3
    assert value(found, "mainspring_http_requests_total", route="(none)", status="404") == 1
    under_way = value(found, "mainspring_log_commits_total") - value(found, "mainspring_log_commit_seconds")
    assert under_way in (0, 1)
    assert value(found, "mainspring_log_engine_info", engine="sqlite") == 1
    assert value(found, "mainspring_log_size_bytes") > 0
    assert value(found, "mainspring_log_disk_free_bytes") > 0
    assert value(found, "mainspring_loop_turns_total") > 10
    assert value(found, "mainspring_cluster_nodes") == 1
    assert value(found, "mainspring_ready") == 1


async def test_open_metrics_for_those_who_ask(running: Running) -> None:
    await busy(running)
    _, text = await running.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    names = {family.name for family in open_metrics(text)}
    assert {"mainspring_kernel_requests", "mainspring_log_commit_seconds", "mainspring_build"} <= names


async def test_what_clients_send_makes_no_label(running: Running) -> None:
    before = await labels(running)
    for number in range(20):
        await running.command(f"Made.Up{number}", {})
        await running.get(f"/made/up/{number}")
        await running.session.request(f"MADE{number}", running.address + "/topics")
        await running.command("Order.Place", {"cents": number + 20})
    new = await labels(running) - before
    assert not [each for each in new if "Made" in each[1] or "made" in each[1].lower()]
    assert {method for label, method in new if label == "method"} <= {"GET", "POST", "(other)"}


async def labels(running: Running) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    for family in (await metrics(running)).values():
        found |= {item for sample in family.samples for item in sample.labels.items()}
    return found


def test_of_many_topics_the_first_are_named_and_the_rest_is_added_up() -> None:
    rows: list[Any] = [((f"topic-{number}",), 1.0) for number in range(MOST_ROWS + 50)]
    kept = bounded(rows)
    assert kept[:MOST_ROWS] == rows[:MOST_ROWS]
    assert kept[MOST_ROWS:] == [((OTHERS,), 50.0)]
    assert bounded(rows[:3]) == rows[:3]


def test_a_histogram_counts_everything_once_in_the_right_bucket() -> None:
    histogram = numbers()
    for number in (1, 2, 3, 4, 5_000):
        histogram.observe(number)
    buckets = dict(histogram.buckets())
    assert (buckets["1"], buckets["3"], buckets["7"], buckets["4095"], buckets["+Inf"]) == (1, 3, 4, 4, 5)
    assert (histogram.count, histogram.sum) == (5, 5_010)
    durations = nanoseconds()
    durations.observe(1_000_000)
    bounds = {float(bound): count for bound, count in durations.buckets()}
    assert bounds[min(bound for bound in bounds if bound >= 0.001)] == 1
    assert bounds[max(bound for bound in bounds if bound < 0.001)] == 0
    assert list(bounds) == sorted(bounds)
