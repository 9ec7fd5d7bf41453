"""Every decision has a date, a status and existing files; the index lists it; links lead to a page and a section."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.test_links import anchors_of, links_of
from tests.support.paths import ROOT

DECISIONS = ROOT / "docs" / "decisions"
INDEX = DECISIONS / "README.md"
PAGES = sorted(DECISIONS.glob("*.md"))
TOPICS = [page for page in PAGES if page != INDEX]
FIELD = r"^- \*\*{}:\*\* (.+(?:\n  .+)*)$"  # a line of the header; it may continue, indented
MENTION = re.compile(r"docs/decisions/([\w\-]+)\.md(?:#([\w\-]+))?")
LOOSE = re.compile(r"\bdecisions?/0\d{3}\b|\bdecisions? 0\d{3}\b|\(0[01]\d\d\)", re.IGNORECASE)
TEXTS = [
    path
    for folder in ("src", "tests", "bench", "examples", "tools", "docs")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in {".py", ".md", ".js", ".toml"} and path != Path(__file__).resolve()
] + [*sorted(ROOT.glob("*.md")), ROOT / "pyproject.toml", ROOT / "Makefile"]


def name_of(page: Path) -> str:
    return page.stem


def field(page: Path, name: str) -> str:
    found = re.search(FIELD.format(name), page.read_text(encoding="utf-8"), re.MULTILINE)
    assert found, f"{page.name} has no **{name}** in its header"
    return found[1]


@pytest.mark.parametrize("page", TOPICS, ids=name_of)
def test_a_page_says_when_and_whether_it_holds_and_for_which_files(page: Path) -> None:
    assert re.match(r"\d{4}-\d\d-\d\d\b", field(page, "Date"))
    assert re.match(r"(accepted|superseded by)\b", field(page, "Status"))
    files = re.findall(r"`([^`]+)`", field(page, "Files"))
    assert files
    assert [file for file in files if not (ROOT / file).is_file()] == []


@pytest.mark.parametrize("page", TOPICS, ids=name_of)
def test_a_page_has_the_same_sections_as_the_others(page: Path) -> None:
    sections = re.findall(r"^## (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert sections == ["Context", "Decision", "Consequences", "Tried and left out"]


def test_the_index_lists_every_page_with_its_status_and_date() -> None:
    rows = re.findall(r"^\|.*\]\(([\w\-]+\.md)\).*\| *(.+?) *\| *(\S+) *\|$", INDEX.read_text("utf-8"), re.MULTILINE)
    assert sorted(name for name, _, _ in rows) == [page.name for page in TOPICS]
    for name, status, date in rows:
        assert field(DECISIONS / name, "Date").startswith(date), name
        assert field(DECISIONS / name, "Status").split(";")[0] == status.split(";")[0], name


def test_links_to_decisions_lead_to_a_page_and_a_section() -> None:
    broken = [
        f"{path.relative_to(ROOT)}: {target.name}#{anchor}"
        for path in TEXTS
        if path.suffix == ".md"
        for target, anchor in links_of(path)
        if target.is_relative_to(DECISIONS)
        and (not target.exists() or (anchor and anchor not in anchors_of(INDEX if target == DECISIONS else target)))
    ]
    for path in TEXTS:
        for name, anchor in MENTION.findall(path.read_text(encoding="utf-8")):
            page = DECISIONS / f"{name}.md"
            if not page.exists() or (anchor and anchor not in anchors_of(page)):
                broken.append(f"{path.relative_to(ROOT)}: {name}#{anchor}")
    assert broken == []


def test_decisions_are_named_by_their_page_and_not_by_a_number() -> None:
    assert [path.relative_to(ROOT).as_posix() for path in TEXTS if LOOSE.search(path.read_text(encoding="utf-8"))] == []
