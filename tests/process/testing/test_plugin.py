"""The pytest plugin, run the way a user's project runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

APP = """
from mainspring import App, Event

app = App("dice")

@app.command("Dice.Roll")
async def roll(data: dict, ctx) -> dict:
    await ctx.publish("rolls", data)
    return data
"""

TESTS = """
import pytest
from mainspring.testing import simulate
from dice import app

def test_a_plain_function_gets_a_world(world):
    assert world.events("rolls") == []

@pytest.mark.seeds(6)
async def test_not_with_every_seed(world):
    assert await world.command("Dice.Roll", {"n": 1}) == {"n": 1}
    assert world.seed != 4

async def test_with_a_simulation_of_its_own():
    async with simulate(app) as world:
        assert world.seed == 0
"""


def pytest_in(folder: Path, *arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "MAINSPRING"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto", *arguments],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout + done.stderr


def project(folder: Path) -> None:
    (folder / "dice.py").write_text(APP)
    (folder / "test_dice.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\nmainspring_app = dice:app\n")


def test_a_failing_seed_prints_the_one_command_that_repeats_it(tmp_path: Path) -> None:
    project(tmp_path)
    said = pytest_in(tmp_path, "-q")
    assert "1 failed, 7 passed" in said
    command = "pytest 'test_dice.py::test_not_with_every_seed[4]' --mainspring-seed=4"
    assert f"simulated with seed 4; run it again: {command}" in said
    again = pytest_in(tmp_path, "-q", "test_dice.py::test_not_with_every_seed[4]", "--mainspring-seed=4")
    assert "1 failed" in again


def test_a_seed_from_the_command_line_reaches_every_simulation_that_gives_none(tmp_path: Path) -> None:
    project(tmp_path)
    said = pytest_in(tmp_path, "-q", "--mainspring-seed=3")
    assert "1 failed, 2 passed" in said
    command = "pytest test_dice.py::test_with_a_simulation_of_its_own --mainspring-seed=3"
    assert f"simulated with seed 3; run it again: {command}" in said


def test_a_fixture_named_app_is_the_program_under_test(tmp_path: Path) -> None:
    project(tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_dice.py").write_text(
        "import pytest, dice\n\n@pytest.fixture\ndef app():\n    return dice.app\n\n"
        "async def test_it(world):\n    assert await world.command('Dice.Roll', {}) == {}\n"
    )
    assert "1 passed" in pytest_in(tmp_path, "-q")
