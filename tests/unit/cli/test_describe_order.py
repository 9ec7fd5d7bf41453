"""A list of everything a node handles begins with what its program brings."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

import pytest

from mainspring import App
from mainspring.cli.program import kernel
from mainspring.testing import simulate


def test_the_program_comes_before_what_every_node_has(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    types = ("Syscall.Ping", "Order.Place", "Bus.Read", "Order.Shelf")
    entries = [{"kind": "query", "type": type, "description": ""} for type in types]
    monkeypatch.setattr(kernel, "listed", lambda wire: iter(entries))
    wire: Any = None
    kernel._show_types(wire, as_json=False)
    shown = [line.split()[1] for line in capsys.readouterr().out.splitlines()]
    assert shown == ["Order.Place", "Order.Shelf", "Syscall.Ping", "Bus.Read"]


async def test_what_every_node_has_is_what_a_node_without_a_program_has() -> None:
    async with simulate(App("nothing")) as world:
        pages = (await world.query("Syscall.List", {}))["pages"]
        listed = [await world.query("Syscall.List", {"page": page}) for page in range(pages)]
    assert {entry["type"].partition(".")[0] for page in listed for entry in page["types"]} == kernel.BUILT_IN


def test_the_dashboard_calls_the_same_built_in() -> None:
    view = (files("mainspring") / "dashboard/views/kernel.js").read_text()
    (names,) = re.findall(r"const BUILT_IN = new Set\(\[(.*?)\]\)", view)
    assert set(re.findall(r'"(\w+)"', names)) == kernel.BUILT_IN
