"""The documentation as a site: it builds without a link that leads nowhere, and its front page shows what this is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tools.site import front_page, on_site

from tests.support.paths import ROOT

MKDOCS = ROOT / ".venv" / "docs" / "bin" / "mkdocs"


def test_links_out_of_the_documentation_lead_to_the_repository() -> None:
    source = "https://github.com/mainspring-runtime/mainspring/blob/main"
    folder = ROOT / "docs" / "how-to"
    assert on_site("[a](../../examples/README.md#x)", folder) == f"[a]({source}/examples/README.md#x)"
    assert on_site("[a](../tutorial.md#x) [b](#here)", folder) == "[a](../tutorial.md#x) [b](#here)"
    assert on_site("[a](../README.md) [b](https://x.y)", folder) == "[a](../index.md) [b](https://x.y)"
    assert on_site("[a](docs/tutorial.md)", ROOT) == "[a](tutorial.md)"
    assert on_site("```python no-run\nx\n```", folder) == "```python\nx\n```"


def test_the_front_page_shows_the_first_program_and_the_dashboard() -> None:
    page = front_page()
    assert page.startswith("# Mainspring\n")
    assert "\n```python\n" in page
    assert "App(" in page
    assert "](how-to/images/dashboard-overview.png)" in page
    assert "[tutorial](tutorial.md)" in page


def test_the_site_builds_with_search_dark_mode_versions_and_no_dead_link(tmp_path: Path) -> None:
    if not MKDOCS.exists():
        pytest.skip("MkDocs is not installed: make docs installs it")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    subprocess.run([sys.executable, "-m", "tools.site", tmp_path / "build"], cwd=ROOT, check=True)
    done = subprocess.run(
        [MKDOCS, "build", "-q", "--strict"],
        cwd=tmp_path,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    site = tmp_path / "build" / "site"
    front = (site / "index.html").read_text()
    assert 'src="how-to/images/dashboard-overview.png"' in front
    assert 'data-md-color-scheme="slate"' in front
    assert '"provider": "mike"' in front
    assert "https://fonts." not in front
    found = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    assert any("TaskHandle" in each["text"] for each in found if each["location"].startswith("reference/python/"))
