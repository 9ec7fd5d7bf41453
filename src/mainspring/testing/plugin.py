"""The pytest plugin: a world as a fixture, seeds as a marker, and the command that repeats a failure.

    def test_x(world): ...                     the app of a fixture named `app`, or of `mainspring_app` in pytest's ini
    @pytest.mark.seeds(20)                     once for each of twenty seeds
    pytest --mainspring-seed=7                 with this seed only

Nothing of Mainspring is imported before a test asks for it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from mainspring.testing.world import World

_SEED = pytest.StashKey[int]()
_FIXTURE = "mainspring_seed"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("mainspring", "Mainspring's simulations")
    group.addoption("--mainspring-seed", type=int, default=None, help="The seed of simulations that give none.")
    parser.addini("mainspring_app", "MODULE:APP of the `world` fixture, unless there is a fixture named `app`.")


def pytest_configure(config: pytest.Config) -> None:
    pytest.register_assert_rewrite("mainspring.testing.engine_contract")
    config.addinivalue_line("markers", "seeds(n): run the test once for each of n seeds of its simulation.")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker("seeds")
    if marker is None:
        return
    if _FIXTURE not in metafunc.fixturenames:
        metafunc.fixturenames.append(_FIXTURE)
    only = metafunc.config.getoption("--mainspring-seed")
    metafunc.parametrize(_FIXTURE, range(*marker.args) if only is None else [only], indirect=True)


@pytest.fixture
def mainspring_seed(request: pytest.FixtureRequest) -> Iterator[int]:
    """The seed of this test's simulations."""
    seed = getattr(request, "param", None)
    if seed is None:
        seed = request.config.getoption("--mainspring-seed") or 0
    request.node.stash[_SEED] = seed
    with _chosen(seed):
        yield seed


@pytest.fixture
def world(request: pytest.FixtureRequest, mainspring_seed: int) -> Iterator[World]:
    """A simulated node of the program under test, on virtual time."""
    from mainspring.testing import simulate

    with simulate(_program(request), mainspring_seed) as opened:
        yield opened


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    seed = item.config.getoption("--mainspring-seed")
    if seed is None or _SEED in item.stash:
        return (yield)
    with _chosen(seed):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    seed = item.stash.get(_SEED, None)
    if seed is not None and report.when == "call" and report.failed:
        from mainspring.testing.seeds import command

        repeat = command(seed, None, item.nodeid)
        report.sections.append(("mainspring", f"simulated with seed {seed}; run it again: {repeat}"))
    return report


class _chosen:
    """While this is entered, simulations that give no seed use this one."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __enter__(self) -> None:
        from mainspring.testing import seeds

        seeds.choose(self._seed)

    def __exit__(self, *_: object) -> None:
        from mainspring.testing import seeds

        seeds.unchoose()


def _program(request: pytest.FixtureRequest) -> Any:
    from mainspring.node import load_program

    named = request.config.getini("mainspring_app")
    if not named:
        return request.getfixturevalue("app")
    try:
        return request.getfixturevalue("app")
    except pytest.FixtureLookupError:
        return load_program(named)
