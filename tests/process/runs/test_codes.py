"""The digest of a program's code: the same where the code does the same, on every node and in every process."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from typing import Any

from mainspring.cluster import ProgramOrder
from mainspring.runs.programs import Program, code_of

SOURCE = '''
async def program(order, perform):
    """What it does."""
    if order in {"a", "b", "c"}:
        await perform(lambda: "inner")
    return order
'''


def made(source: str) -> Program:
    names: dict[str, Any] = {}
    exec(compile(source, "somewhere.py", "exec", dont_inherit=True), names)
    program: Program = names["program"]
    return program


def test_how_it_is_written_does_not_count() -> None:
    other = "\n\n# a comment\n" + SOURCE.replace("What it does.", "Other words.").replace(
        "return order", "return (order)"
    )
    assert code_of(made(SOURCE)) == code_of(made("\n\n" + other)) != ""


def test_what_it_does_counts() -> None:
    changes = [
        ("return order", "return None"),
        ('"a"', '"x"'),
        ('"inner"', '"other"'),
        ("perform(lambda", "order(lambda"),
    ]
    codes = {code_of(made(SOURCE.replace(*change))) for change in changes}
    assert len(codes | {code_of(made(SOURCE))}) == len(changes) + 1


def test_it_is_the_same_in_every_process() -> None:
    script = (
        "from mainspring.runs.programs import code_of\n"
        f"names = {{}}\nexec(compile({SOURCE!r}, 'elsewhere.py', 'exec'), names)\nprint(code_of(names['program']))"
    )
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        assert done.stdout.strip() == code_of(made(SOURCE))


def test_partial_functions_and_objects_have_the_code_of_what_is_called() -> None:
    class Program:
        async def __call__(self, order: str, perform: Any) -> str:
            return order

    assert code_of(functools.partial(made(SOURCE), "a")) == code_of(made(SOURCE))
    assert code_of(Program()) == code_of(Program()) != ""
    assert code_of(object()) == ""


def test_codes_are_known_in_the_order_they_came() -> None:
    order = ProgramOrder().with_("one").with_("two").with_("three")
    assert order.newer_than("one") == ("two", "three")
    assert order.newer_than("three") == ()
    assert order.newer_than("never seen") == ()
