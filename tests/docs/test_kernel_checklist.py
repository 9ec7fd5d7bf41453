"""The table in the reference names, for every promise of the kernel, the tests that show it."""

from __future__ import annotations

from tests.support.kernel_checklist import COUNT, listed, shown


def test_every_promise_is_listed_once_with_the_tests_that_show_it() -> None:
    table, tests = listed(), shown()
    assert sorted(table) == list(range(1, COUNT + 1))
    for number, (promise, names) in table.items():
        assert promise, number
        assert names, f"promise {number} is shown by no test: {promise}"
        shown = sorted(tests.get(number, []))
        assert sorted(names) == shown, f"promise {number}: run python -m tests.support.kernel_checklist"


def test_no_test_claims_a_promise_that_is_not_listed() -> None:
    assert set(shown()) <= set(range(1, COUNT + 1))
