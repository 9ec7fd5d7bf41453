"""The page of benchmarks: it says what its run measured, also where a peer was not installed or a part failed."""

from __future__ import annotations

import copy
import json
from typing import Any
from xml.etree import ElementTree

import pytest
from bench.report import page, plots

from tests.support.paths import ROOT

FOLDER = ROOT / "docs" / "benchmarks"


@pytest.fixture
def found() -> dict[str, Any]:
    recorded: dict[str, Any] = json.loads((FOLDER / "run.json").read_text())
    return copy.deepcopy(recorded)


def test_the_page_and_the_plots_are_those_of_the_recorded_run(found: dict[str, Any]) -> None:
    for name, text in {"README.md": page(found), **plots(found)}.items():
        written = (FOLDER / name).read_text(encoding="utf-8")
        assert written == text, f"{name}: write it again with python -m bench.report --from docs/benchmarks"


def test_each_plot_is_on_the_page_and_one_is_in_the_readme(found: dict[str, Any]) -> None:
    names = set(plots(found))
    assert names == {"publish.svg", "deliver.svg", "latency.svg", "sizes.svg", "tasks.svg"}
    assert all(f"]({name})" in page(found) for name in names)
    assert any(f"](docs/benchmarks/{name})" in (ROOT / "README.md").read_text() for name in names)


def test_a_plot_is_well_formed_and_follows_the_readers_colours(found: dict[str, Any]) -> None:
    for text in plots(found).values():
        root = ElementTree.fromstring(text)
        assert root.findtext("{http://www.w3.org/2000/svg}title")
        assert "prefers-color-scheme:dark" in text


def test_a_peer_that_is_not_installed_is_left_out(found: dict[str, Any]) -> None:
    for race in (found["bus"]["publish"], found["bus"]["end_to_end"]):
        for name in ("redis_everysec", "redis_always"):
            del race[name]
            for times in race["times"].values():
                del times[name]
    assert "Redis" not in plots(found)["publish.svg"]
    assert "| Redis Streams" not in page(found)
    assert "| JetStream, default |" in page(found)


def test_a_part_that_failed_is_named_and_the_others_are_there(found: dict[str, Any]) -> None:
    found["bus"] = found["tasks"] = found["limits"] = {"failed": "exit code 1"}
    written = page(found)
    assert "**Bus is missing**: `python -m bench bus` failed with exit code 1." in written
    assert "**Tasks is missing**" in written
    assert "## Cost against size" in written
    assert set(plots(found)) == {"sizes.svg"}


def test_a_busy_machine_and_a_quick_run_are_said_first(found: dict[str, Any]) -> None:
    found["conditions"].update(used_by_others=0.5, quick=True)
    first = page(found).partition("## Conditions")[0]
    assert "The machine was busy" in first
    assert "quick run" in first
    found["conditions"].update(used_by_others=0.01, load_before="0.1 0.1 0.1", quick=False)
    assert "busy with other work" not in page(found)
