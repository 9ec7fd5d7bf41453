"""The architecture page names files and folders that exist, and every folder of the package is on it."""

from __future__ import annotations

import re

from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
PACKAGE = ROOT / "src" / "mainspring"
PATH = re.compile(r"`([\w.]+(?:/[\w.]+)*/?)`")


def test_every_path_on_the_page_exists() -> None:
    paths = [path for path in PATH.findall(PAGE) if "/" in path or path.endswith(".py")]
    assert len(paths) > 50
    places = (PACKAGE, PACKAGE / "log" / "engines", ROOT)
    assert [path for path in paths if not any((place / path).exists() for place in places)] == []


def test_every_folder_of_the_package_is_on_the_page() -> None:
    folders = [folder.parent.name for folder in PACKAGE.glob("*/__init__.py")]
    assert [name for name in folders if f"| `{name}/` |" not in PAGE] == []
