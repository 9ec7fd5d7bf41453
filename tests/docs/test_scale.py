"""The page about scale has the figures of its model, and the model agrees with a simulation that does not know it."""

from __future__ import annotations

import pytest
from bench.scale import MOST_IN_A_COMMIT, NATS, POSTGRESQL, SIZES, SQLITE, NodeCost, events_per_second, simulate, table

from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "explanation" / "scale.md").read_text(encoding="utf-8")


def test_the_page_has_the_table_of_the_model() -> None:
    for row in table():
        assert row in PAGE
    batches, single = (events_per_second(SQLITE, 1, in_a_commit=events) / 1e3 for events in (MOST_IN_A_COMMIT, 1))
    assert f"{batches:.0f} thousand events a second in large commits and {single:.3g} thousand in commits" in PAGE


@pytest.mark.parametrize("cost", [NATS, POSTGRESQL], ids=["nats", "postgresql"])
@pytest.mark.parametrize("in_a_commit", [1, 2_048])
@pytest.mark.parametrize("nodes", SIZES)
def test_the_model_agrees_with_the_simulation(cost: NodeCost, nodes: int, in_a_commit: int) -> None:
    model = events_per_second(cost, nodes, in_a_commit=in_a_commit)
    assert simulate(cost, nodes, in_a_commit=in_a_commit) == pytest.approx(model, rel=0.1)


def test_four_nodes_on_four_logs_do_four_times_what_one_does() -> None:
    assert events_per_second(NATS, 4, logs=4) == pytest.approx(4 * events_per_second(NATS, 1))
    assert events_per_second(NATS, 4) < 3 * events_per_second(NATS, 1)
