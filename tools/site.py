"""The documentation as a site: `python -m tools.site build` writes its pages into build/site-pages, for MkDocs.

The pages are those of docs/. Three things differ on a site: the front page shows the first program and the dashboard, a
link to a file outside docs/ leads to the repository, and a block of code says its language alone. Nothing that is
written here is committed.
"""

from __future__ import annotations

import re
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
DOCS: Final = ROOT / "docs"
_LINK: Final = re.compile(r"(!?\[[^\]]*\])\((?!\w+:|#)([^)\s#]+)(#[^)\s]*)?\)")
_FENCE: Final = re.compile(r"^( *```\w+) [^\n`]*$", re.MULTILINE)
_FIRST_PROGRAM: Final = re.compile(r"## A first program\n.*?^```\n(?=\n)", re.DOTALL | re.MULTILINE)
_PICTURE: Final = re.compile(r"^!\[[^\]]*\]\(docs/[^)]*dashboard[^)]*\)$", re.MULTILINE)


def write_pages(folder: Path) -> None:
    """Put all pages and pictures there, new."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(DOCS, folder)
    (folder / "README.md").unlink()
    for page in DOCS.rglob("*.md"):
        if page != DOCS / "README.md":
            (folder / page.relative_to(DOCS)).write_text(on_site(page.read_text(encoding="utf-8"), page.parent))
    (folder / "index.md").write_text(front_page())


def front_page() -> str:
    """What the README says first, the first program, the dashboard, and the index of the documentation."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    about = readme[: readme.index("## A first program")]
    program, picture = _FIRST_PROGRAM.search(readme), _PICTURE.search(readme)
    if program is None or picture is None:
        raise SystemExit("README.md has no first program or no picture of the dashboard for the front page")
    shown = on_site("\n".join((about, program[0], picture[0], "")), ROOT)
    index = on_site((DOCS / "README.md").read_text(encoding="utf-8"), DOCS)
    return f"{shown}\n{index.replace('# Documentation', '## Documentation', 1)}"


def on_site(text: str, folder: Path) -> str:
    """A page's text, for a page that is in this folder of the repository."""
    source = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]

    def link(found: re.Match[str]) -> str:
        target = (folder / found[2]).resolve()
        if target == DOCS / "README.md":
            target = DOCS / "index.md"
        if target.is_relative_to(DOCS):
            if folder == ROOT:
                return f"{found[1]}({target.relative_to(DOCS)}{found[3] or ''})"
            if target.is_dir():
                target = target / "README.md"
            up = "../" * len(folder.relative_to(DOCS).parts)
            return f"{found[1]}({up}{target.relative_to(DOCS)}{found[3] or ''})"
        return f"{found[1]}({source}/blob/main/{target.relative_to(ROOT)}{found[3] or ''})"

    return _FENCE.sub(r"\1", _LINK.sub(link, text))


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]) / "site-pages")
