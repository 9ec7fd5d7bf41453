"""The alert rules and the Grafana dashboard speak of metrics that exist, and have the shape their readers expect."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from tests.support.metrics import documented
from tests.support.paths import ROOT

OPS = ROOT / "docs" / "ops"
NAME = re.compile(r"\b((?:mainspring|process|python)_\w+)")
PARTS = ("loop", "log", "kernel", "runs", "beats", "group", "cluster", "http")


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((OPS / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    assert len({group["name"] for group in groups}) == len(groups)
    return [rule for group in groups for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((OPS / "grafana-dashboard.json").read_text(encoding="utf-8"))
    return found


def queries() -> list[str]:
    return [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())]


def unknown(expression: str) -> set[str]:
    """Names in a query that no node exposes; those of histograms with their suffixes."""
    page = documented()
    known = set(page)
    for name, (kind, _) in page.items():
        if kind == "histogram":
            known |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
    return set(NAME.findall(expression)) - known


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_is_about_metrics_that_exist_and_says_what_to_do(rule: dict[str, Any]) -> None:
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert unknown(rule["expr"]) == set()
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert set(rule["annotations"]) == {"summary", "description"}
    assert re.fullmatch(r"Mainspring[A-Za-z]+", rule["alert"])
    assert re.fullmatch(r"\d+[smh]", rule.get("for", "1m"))
    assert rule["expr"].count("(") == rule["expr"].count(")")


def test_there_is_an_alert_for_everything_somebody_must_get_up_for() -> None:
    spoken_of = " ".join(rule["expr"] for rule in rules())
    for name in (
        "mainspring_ready",
        "mainspring_log_fault",
        "mainspring_group_lag_events",
        "mainspring_dead_letters_total",
        "mainspring_loop_slow_turns_total",
        "mainspring_kernel_restarts_total",
        "mainspring_log_disk_free_bytes",
        "mainspring_log_room_full",
        "mainspring_runs_leases_lost_total",
        "mainspring_log_reconnects_total",
        "mainspring_quota_refusals_total",
        "mainspring_port_connections_ended_total",
    ):
        assert name in spoken_of
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)


def test_the_dashboard_asks_for_metrics_that_exist_in_every_part() -> None:
    asked = queries()
    assert {expression: unknown(expression) for expression in asked if unknown(expression)} == {}
    for part in PARTS:
        assert any(f"mainspring_{part}_" in expression for expression in asked), part


def test_the_dashboard_can_be_imported() -> None:
    page = dashboard()
    assert (page["uid"], page["title"]) == ("mainspring", "Mainspring")
    assert page["schemaVersion"] >= 36
    assert [each["name"] for each in page["templating"]["list"]] == ["datasource", "instance"]
    panels = page["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    taken = [(x, y) for place in places for x, y in cells(place)]
    assert len(set(taken)) == len(taken), "two panels overlap"
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for panel in panels:
        assert panel["type"] in ("row", "stat", "timeseries")
        for target in panel.get("targets", ()):
            assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert "$instance" in target["expr"]
            assert target["expr"].count("(") == target["expr"].count(")")


def cells(place: dict[str, int]) -> list[tuple[int, int]]:
    return [
        (x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])
    ]
