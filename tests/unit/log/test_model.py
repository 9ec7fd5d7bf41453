"""Random batches on every engine, compared step by step with a model that copies everything and thinks slowly."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings

from mainspring.log import (
    Batch,
)
from tests.support.fixtures.log import EACH_ENGINE, ENGINES
from tests.support.log_model import (
    Comparison,
    steps,
)

EXAMPLES = {"mongo": 25, "postgres": 40}  # each begins with a new log, which takes a server longer than a file


@pytest.mark.slow
@pytest.mark.parametrize("name", EACH_ENGINE)
def test_every_engine_behaves_like_the_model(name: str) -> None:
    async def run(plan: list[list[Batch] | str], place: Path) -> None:
        make_engine = ENGINES[name](place)
        comparison = Comparison(make_engine())
        await comparison.engine.open()
        for step in plan:
            if isinstance(step, str):
                await comparison.engine.close()
                comparison.engine = make_engine()
                await comparison.engine.open()
            else:
                await comparison.commit(step)
            await comparison.check()
        await comparison.engine.close()

    @settings(max_examples=EXAMPLES.get(name, 120))
    @given(plan=steps)
    def check(plan: list[list[Batch] | str]) -> None:
        with tempfile.TemporaryDirectory() as place:
            asyncio.run(run(plan, Path(place)))

    check()
