"""Links of the documentation lead somewhere, and every page can be found from its index."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.paths import ROOT

DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)")
FENCE = re.compile(r"^ *```.*?^ *```\s*$", re.MULTILINE | re.DOTALL)


def links_of(page: Path) -> list[tuple[Path, str]]:
    """What a page links to on this disk, and the heading there."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return [
        ((page.parent / target).resolve() if target else page.resolve(), anchor)
        for target, anchor in LINK.findall(text)
    ]


def anchors_of(page: Path) -> set[str]:
    """Headings as their anchors: lower case, without punctuation, dashes for spaces."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ +(.*?) *$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    broken = [
        f"{target.relative_to(ROOT)}#{anchor}"
        for target, anchor in links_of(page)
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors_of(target))
    ]
    assert broken == []


def test_every_page_is_at_most_two_clicks_from_the_index() -> None:
    index = DOCS / "README.md"
    indexes = [index, *(page for page, _ in links_of(index) if page.name in ("README.md", "python.md"))]
    linked = {index.resolve(), *(target for each in indexes for target, _ in links_of(each))}
    generated = DOCS / "reference" / "python"
    pages = {page.resolve() for page in DOCS.rglob("*.md") if page.parent != generated}
    assert sorted(page.relative_to(DOCS).as_posix() for page in pages - linked) == []
