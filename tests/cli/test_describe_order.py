"""A list of everything a node handles begins with what its program brings."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.cli import kernel


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
