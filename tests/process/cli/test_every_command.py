"""Every command, found by walking the help: what a person or a script may rely on from any of them."""

from __future__ import annotations

import re

import pytest

from tests.support.in_process import mainspring
from tests.support.paths import ROOT


def listed(*command: str) -> list[str]:
    """The subcommands that the help of a command lists."""
    _, _, commands = mainspring(*command, "-h").stdout.partition("Commands:\n")
    return re.findall(r"^  ([a-z-]+)", commands, re.MULTILINE)


def walked() -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name in listed():
        below = listed(name)
        found += [(name, each) for each in below] if below else [(name,)]
    return found


def test_every_command_has_help_by_one_letter_and_json() -> None:
    found = walked()
    assert {("serve",), ("runs", "list")} <= set(found)
    for command in found:
        text = mainspring(*command, "-h").stdout
        assert text == mainspring(*command, "--help").stdout
        assert text.startswith(f"Usage: mainspring {' '.join(command)}")
        assert re.search(r"^  --json\b", text, re.MULTILINE), command


def test_every_command_that_an_error_or_a_help_text_names_can_be_typed() -> None:
    known = set(walked())
    named: set[tuple[str, ...]] = set()
    for file in (ROOT / "src").rglob("*.py"):
        for words in re.findall(r"`mainspring ([a-z][a-z -]*[a-z])", file.read_text()):
            first, *others = words.split(" ")
            grouped = any(len(each) == 2 and each[0] == first for each in known)
            named.add((first, *others[:1]) if grouped and others else (first,))
    groups = {(each[0],) for each in known}
    assert named - known - groups == set()
    assert ("tasks", "list") in named


def test_no_remedy_names_a_message_that_nobody_can_type() -> None:
    found = [
        f"{file.name}: {line.strip()}"
        for file in (ROOT / "src").rglob("*.py")
        for line in file.read_text().splitlines()
        if re.search(r"remedy=.*\b(Syscall|Run|Bus|Beat|Timer)\.[A-Z]", line)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("typed", "meant"), [("sevre", "serve"), ("topcs", "topics"), ("runs lst", "list"), ("dlq redriv", "redrive")]
)
def test_a_mistyped_command_names_the_likely_one(typed: str, meant: str) -> None:
    said = mainspring(*typed.split(), code=2)
    assert f"did you mean '{meant}'?" in said.stderr
