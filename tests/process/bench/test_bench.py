"""The benchmarks as a program: help at once, clear refusals, and figures that can be trusted."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from bench.__main__ import PARTS, figures
from bench.harness import alternate, compare, ratio, spread, summary, versus

from tests.support.paths import ROOT


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def test_help_is_printed_and_nothing_is_measured() -> None:
    done = bench("-m", "bench", "--help")
    assert done.returncode == 0
    assert "--against OTHER" in done.stdout
    assert done.stderr == ""


def test_the_report_says_how_long_it_takes_and_where_it_writes() -> None:
    done = bench("-m", "bench.report", "--help")
    assert done.returncode == 0, done.stderr
    assert "docs/benchmarks" in done.stdout


@pytest.mark.parametrize("part", PARTS)
def test_each_part_says_what_it_measures(part: str) -> None:
    done = bench("-m", f"bench.{part}", "--help")
    assert done.returncode == 0, done.stderr
    assert "--quick" in done.stdout


def test_an_unknown_part_is_refused_with_those_there_are() -> None:
    done = bench("-m", "bench", "lop")
    assert done.returncode == 2
    assert "unknown part lop; there are: limits, loop, log" in done.stderr


def test_one_part_gives_one_json_object_with_its_conditions() -> None:
    done = bench("-m", "bench", "kernel", "--quick")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["kernel"]["ask_on_asyncio"]["ratio"] > 0
    assert {"cores", "python", "loop", "load"} <= found["kernel"]["conditions"].keys()


def test_both_sides_take_turns_and_the_first_round_is_not_counted() -> None:
    order: list[str] = []

    def side(name: str, values: list[float]) -> float:
        order.append(name)
        return values[len(order) // 2 - (name == "b")]

    pairs = alternate(lambda: side("a", [9, 1, 2]), lambda: side("b", [9, 2, 8]), 2)
    assert order == ["a", "b"] * 3
    assert pairs == [(1, 2), (2, 8)]
    assert ratio([(b, a) for a, b in pairs]) == 3
    assert spread([(b, a) for a, b in pairs]) == [2, 4]


def test_a_comparison_has_both_times_the_ratio_and_its_spread() -> None:
    assert compare(lambda: 0.002, lambda: 0.004, ("ours_ms", "theirs_ms"), 3, scale=1000) == {
        "ours_ms": 2,
        "theirs_ms": 4,
        "ratio": 2.0,
        "spread": [2.0, 2.0],
    }


def test_rounds_have_a_median_and_a_spread_and_ratios_are_of_the_same_round() -> None:
    assert summary([3, 1, 2]) == {"median": 2, "spread": [1, 3]}
    assert versus([10, 30, 20], [10, 10, 10]) == {"ratio": 2.0, "spread": [1.0, 3.0]}


def test_figures_are_found_by_their_path_and_those_of_rounds_are_their_median() -> None:
    found = {"conditions": {"cores": 2}, "publish": {"rate": 10, "goal": 4, "deep": {"us": 1.5}}, "ok": True}
    assert dict(figures(found)) == {"publish.rate": 10.0, "publish.deep.us": 1.5}
    assert dict(figures({"publish": summary([3, 1, 2])})) == {"publish": 2.0}
