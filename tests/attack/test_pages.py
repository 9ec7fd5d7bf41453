"""Pages of a program are for everybody, and nothing else of the machine is: no name leads out of their folder, and none
is an error of the node, which a stranger could fill the log with.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from yarl import URL

from mainspring import App
from tests.support.access import LINES, served

NAMES = [
    "../secret",
    "%2e%2e/secret",
    "%252e%252e/secret",
    "..%2fsecret",
    "..%5csecret",
    "//etc/passwd",
    "%2fetc%2fpasswd",
    "a/../../secret",
    "link",
    "circle",
    "fifo",
    "folder",
    "folder/",
    ".hidden",
    "folder/.hidden",
    "x%00",
    "x" * 300,
    "%1b%5b2J%0d%0a" + "y" * 300,
    "a/" * 2_000,
    "index.html/",
    "index.html/more",
    "%ff%fe",
]


async def test_no_name_leads_out_of_the_folder_or_to_an_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "site"
    (folder / "folder").mkdir(parents=True)
    (folder / "index.html").write_text("hello")
    (tmp_path / "secret").write_text("SECRET")
    for hidden in (folder / ".hidden", folder / "folder" / ".hidden"):
        hidden.write_text("SECRET")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "circle").symlink_to(folder / "circle")
    os.mkfifo(folder / "fifo")
    app = App("shop")
    app.pages("/site", folder)
    async with served(app, tokens=LINES) as node:
        for name in NAMES:
            async with node.session.get(URL(f"{node.url}/site/{name}", encoded=True)) as answer:
                body = await answer.text()
                assert (answer.status, "SECRET" in body, "root:" in body) == (404, False, False), name
        assert (await node.get("/site/")).body == b"hello"
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR] == []
