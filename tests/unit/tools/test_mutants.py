"""The faults of `make mutants` can be made: each fits the code as it is, and names tests that there are."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.mutants import CAUGHT, PASSED, Copy, Mutant, load

MUTANTS = load()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_fault_fits_the_code_and_has_tests(mutant: Mutant) -> None:
    assert mutant.problems() == [], "change tools/mutants.toml with the code"
    assert mutant.tests


def test_there_are_many_and_each_has_a_name_of_its_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 30


def test_a_fault_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("a = 1\na = 1\n")
    twice = Mutant("twice", "code.py", "a = 1\n", "a = 2\n", ("code.py",))
    gone = Mutant("gone", "code.py", "b = 1\n", "b = 2\n", ("nothing.py::test",))
    wrong = Mutant("wrong", "code.py", "a = 1\na = 1\n", "a = \n", ("code.py",))
    assert twice.problems(tmp_path) == ["its text occurs 2 times in code.py, not once"]
    assert gone.problems(tmp_path) == [
        "its text occurs 0 times in code.py, not once",
        "there is no test nothing.py::test",
    ]
    assert "is not Python" in wrong.problems(tmp_path)[0]
    assert Mutant("no file", "x.py", "a", "b", ()).problems(tmp_path) == ["there is no file x.py"]


@pytest.mark.slow
def test_a_fault_is_caught_by_a_test_that_fails_and_mended_again(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "numbers_.py").write_text("def double(n):\n    return 2 * n\n")
    (tmp_path / "test_numbers.py").write_text(
        "from numbers_ import double\n\ndef test_it():\n    assert double(2) == 4\n"
    )
    copy = Copy(tmp_path, ())
    harmful = Mutant("harmful", "numbers_.py", "2 * n", "3 * n", ("test_numbers.py",))
    harmless = Mutant("harmless", "numbers_.py", "2 * n", "n * 2", ("test_numbers.py",))
    verdict = copy.judge(harmful, harmful.tests)
    assert (verdict.kind, verdict.test) == (CAUGHT, "test_numbers.py::test_it")
    assert copy.judge(harmless, harmless.tests).kind == PASSED
    assert (tmp_path / "numbers_.py").read_text() == "def double(n):\n    return 2 * n\n"
