"""Where a node's unix sockets are when nobody says: one runtime directory, and more nodes than one."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from mainspring.unix_socket import listen_at, place_to_ask, place_to_listen


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)  # paths of sockets are short
    monkeypatch.setenv("XDG_RUNTIME_DIR", "run")
    return Path("run/mainspring/kernel.sock")


def listening(data: str) -> socket.socket:
    return listen_at(place_to_listen("", data, "kernel.sock"))


def test_the_first_node_takes_the_runtime_directory_and_the_next_one_its_own(runtime: Path) -> None:
    with listening("a"):
        assert place_to_ask("", "a", "kernel.sock") == runtime
        with listening("b"):
            assert place_to_ask("", "b", "kernel.sock") == Path("b/kernel.sock")
            assert place_to_ask("", "a", "kernel.sock") == runtime
        # What a dead node left behind is nobody.
        assert place_to_ask("", "b", "kernel.sock") == runtime
    assert place_to_listen("", "b", "kernel.sock") == runtime


def test_a_path_that_was_given_is_the_path(runtime: Path) -> None:
    with listening("a"):
        assert place_to_listen(str(runtime), "b", "kernel.sock") == runtime
        assert place_to_ask("else.sock", "a", "kernel.sock") == Path("else.sock")


def test_without_a_runtime_directory_the_sockets_are_with_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    assert place_to_listen("", str(tmp_path), "loop.sock") == tmp_path / "loop.sock"
    assert place_to_ask("", str(tmp_path), "loop.sock") == tmp_path / "loop.sock"
