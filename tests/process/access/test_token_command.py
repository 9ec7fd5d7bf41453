"""`mainspring token`: made, listed, checked, and used by a node in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.support.serving import Serving, clean_environment


def mainspring(*arguments: str, folder: Path, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mainspring", *arguments],
        capture_output=True,
        text=True,
        input=stdin,
        env=clean_environment(env),
        cwd=folder,
        timeout=60,
    )


def made(folder: Path, *arguments: str) -> dict[str, str]:
    done = mainspring("token", "new", *arguments, "--json", folder=folder)
    assert done.returncode == 0, done.stderr
    told: dict[str, str] = json.loads(done.stdout)
    return told


def test_a_token_is_made_listed_and_checked(tmp_path: Path) -> None:
    one = made(
        tmp_path, "--agent", "alice", "--scope", "publish:orders.*", "--scope", "subscribe:**", "--expires", "30d"
    )
    assert one["token"] not in one["line"]
    assert "expires=" in one["line"]
    (tmp_path / "mainspring.toml").write_text(f"tokens = [{json.dumps(one['line'])}]\n")
    listed = mainspring("token", "list", folder=tmp_path)
    assert "alice" in listed.stdout
    assert one["token"] not in listed.stdout
    checked = mainspring("token", "check", "--publish", "orders.eu", "--json", folder=tmp_path, stdin=one["token"])
    assert (checked.returncode, json.loads(checked.stdout)["allowed"]) == (0, {"publish:orders.eu": True})
    refused = mainspring("token", "check", "--publish", "other", folder=tmp_path, stdin=one["token"])
    assert (refused.returncode, "publish:other: no" in refused.stdout) == (1, True)
    unknown = mainspring("token", "check", folder=tmp_path, stdin="ms_wrong")
    assert unknown.returncode == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--agent", "alice", "--scope", "orders"], "is not a scope"),
        (["--agent", "a b", "--scope", "admin"], "cannot name an agent"),
        (["--agent", "alice", "--scope", "admin", "--expires", "soon"], "is not a time"),
    ],
)
def test_what_cannot_be_a_token_is_refused_with_the_remedy(tmp_path: Path, arguments: list[str], said: str) -> None:
    done = mainspring("token", "new", *arguments, folder=tmp_path)
    assert done.returncode == 1
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 2


def test_a_line_is_added_to_a_file_only_its_owner_reads(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    for agent in ("alice", "bob"):
        made(tmp_path, "--agent", agent, "--scope", "admin", "--file", str(file))
    assert [line.split()[0] for line in file.read_text().splitlines()] == ["alice", "bob"]
    assert file.stat().st_mode & 0o077 == 0


def test_a_node_in_its_own_process_obeys_tokens_of_the_environment(tmp_path: Path) -> None:
    one = made(tmp_path, "--agent", "alice", "--scope", "publish:orders")
    other = made(tmp_path, "--agent", "root", "--scope", "admin")
    env = {"MAINSPRING_TOKENS": f"{one['line']},{other['line']}"}

    def publish(node: Serving, topic: str, token: str | None) -> int:
        request = urllib.request.Request(
            f"http://127.0.0.1:{node.port}/topics/{topic}/events",
            data=b'{"payload":1}',
            headers={"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    with Serving("--host", "0.0.0.0", folder=tmp_path, env=env) as node:
        assert publish(node, "orders", one["token"]) == 201
        assert publish(node, "payroll", one["token"]) == 403
        assert publish(node, "payroll", other["token"]) == 201
        assert publish(node, "orders", None) == 401
        assert publish(node, "orders", "ms_guess") == 401
        assert one["token"] not in node.errors()
        assert "without TLS" in node.errors()


def test_without_tokens_it_does_not_start_beyond_loopback(tmp_path: Path) -> None:
    node = Serving("--host", "0.0.0.0", folder=tmp_path)
    node.launch()
    assert node.boot["type"] == "Sys.BootFailed"
    assert "mainspring token new" in json.dumps(node.boot) + node.errors()
    assert node.wait() != 0
