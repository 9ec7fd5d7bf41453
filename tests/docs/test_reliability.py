"""The page about testing names tests, stories and commands that exist, and has every promise of the guarantees."""

from __future__ import annotations

import re

from tools.mutants import load

from tests.simulated.log.test_one_commit import STORIES
from tests.support.paths import ROOT

EXPLANATION = ROOT / "docs" / "explanation"
PAGE = (EXPLANATION / "reliability.md").read_text(encoding="utf-8")
TEST = re.compile(r"`(tests/[\w/.]+\.py)((?:::\w+)*)`")
COMMAND = re.compile(r"`make (\w[\w-]*)")


def answers(page: str) -> list[str]:
    """The first column of the table under "What each answer means"."""
    section = page.partition("## What each answer means")[2].partition("\n## ")[0]
    return [line.split(" | ")[0].removeprefix("| ") for line in section.splitlines() if line.startswith("| ")][1:]


def test_every_test_on_the_page_exists() -> None:
    named = TEST.findall(PAGE)
    assert len(named) > 40
    missing = []
    for path, parts in named:
        text = (ROOT / path).read_text(encoding="utf-8") if (ROOT / path).is_file() else ""
        names = [name for name in parts.split("::") if name]
        if not text or not all(re.search(rf"\b(def|class) {name}\b", text) for name in names):
            missing.append(path + parts)
    assert missing == []


def test_every_story_on_the_page_exists_and_is_on_it() -> None:
    named = {name.strip() for found in re.findall(r"one commit \(([\w, ]+)\)", PAGE) for name in found.split(",")}
    assert named == {story.__name__ for story in STORIES}


def test_every_command_on_the_page_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert [name for name in COMMAND.findall(PAGE) if f"\n{name}:" not in makefile] == []


def test_every_answer_of_the_guarantees_is_on_the_page() -> None:
    promised = answers((EXPLANATION / "guarantees.md").read_text(encoding="utf-8"))
    assert len(promised) > 20
    assert [each for each in promised if each not in answers(PAGE)] == []


def test_the_number_of_deliberate_faults_is_right() -> None:
    assert f"{len(load())} faults" in PAGE
