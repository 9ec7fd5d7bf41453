"""`mainspring sub` and `mainspring tail`: taking part, and only looking."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.serving import PATIENCE_S, Serving, clean_environment
from tests.support.terminal import Terminal, until, url_of


def lag(terminal: Terminal, topic: str, group: str) -> int:
    (found,) = terminal.json("groups", "show", topic, group)
    return int(found["lag"])


def test_what_was_shown_is_acknowledged_and_the_group_goes_on_from_there(terminal: Terminal) -> None:
    terminal.ok("pub", "work", stdin="1\n2\n3\n4\n")
    first = terminal.json("sub", "work", "--group", "g", "--count", "2")
    assert [each["payload"] for each in first] == [1, 2]
    assert lag(terminal, "work", "g") == 2
    assert [each["payload"] for each in terminal.json("sub", "work", "-g", "g", "-n", "2")] == [3, 4]


def test_without_acknowledging_the_events_go_back_to_the_group(terminal: Terminal) -> None:
    terminal.ok("pub", "peek", stdin="1\n2\n")
    terminal.json("sub", "peek", "-g", "g", "-n", "2", "--no-ack")
    assert lag(terminal, "peek", "g") == 2
    again = terminal.json("sub", "peek", "-g", "g", "-n", "2")
    assert sorted(each["payload"] for each in again) == [1, 2]


@pytest.mark.parametrize(("place", "expected"), [("beginning", 1), ("3", 3), ("1h", 1)])
def test_a_new_group_begins_where_it_is_told(terminal: Terminal, place: str, expected: int) -> None:
    topic = f"begin-{place}"
    terminal.ok("pub", topic, stdin="1\n2\n3\n4\n")
    (event,) = terminal.json("sub", topic, "-g", "g", "--from", place, "-n", "1")
    assert event["payload"] == expected


def test_ctrl_c_ends_a_subscription_with_130_and_nothing_is_said_about_it(terminal: Terminal) -> None:
    terminal.ok("pub", "forever", '"first"')
    with terminal.running("sub", "forever", "-g", "g") as command:
        assert '"first"' in command.line()
        assert command.interrupt() == 130
        assert command.errors() == ""


@pytest.mark.parametrize(
    "arguments",
    [["sub", "pipes", "-g", "closed"], ["tail", "-f", "pipes"], ["tail", "pipes", "-n", "100000"]],
    ids=["sub", "follow", "tail"],
)
def test_a_reader_that_has_seen_enough_is_a_success(terminal: Terminal, arguments: list[str]) -> None:
    terminal.ok("pub", "pipes", '"' + "x" * 500 + '"', "-n", "1500")
    with terminal.running(*arguments) as command:
        command.line()
        assert command.process.stdout is not None
        command.process.stdout.close()
        terminal.ok("pub", "pipes", '"and more"')
        assert command.process.wait(PATIENCE_S) == 0
        assert command.errors() == ""


def test_what_a_closed_pipe_did_not_get_is_delivered_again(terminal: Terminal) -> None:
    terminal.ok("pub", "unlost", stdin="".join(f"{number}\n" for number in range(3000)))
    with terminal.running("sub", "unlost", "-g", "g", "--json") as command:
        command.line()
        assert command.process.stdout is not None
        command.process.stdout.close()
        assert command.process.wait(PATIENCE_S) == 0
    left = lag(terminal, "unlost", "g")
    rest = terminal.json("sub", "unlost", "-g", "g", "-n", str(left))
    assert max(each["payload"] for each in rest) == 2999


def test_tail_shows_the_last_events_in_the_order_of_time_over_partitions_and_topics(terminal: Terminal) -> None:
    terminal.ok("topics", "create", "t1", "--partitions", "3")
    for number in range(4):
        keyed = "".join(f'{{"key": "{key}", "payload": {number}}}\n' for key in "abcdef")
        terminal.ok("pub", "t1" if number % 2 else "t2", "--envelopes", stdin=keyed)
    shown = [each["payload"] for each in terminal.json("tail", "t1", "t2", "-n", "100")]
    assert shown == sorted(shown)
    assert len(shown) == 24
    assert [each["payload"] for each in terminal.json("tail", "t1", "-n", "2")] == [3, 3]
    lines = terminal.ok("tail", "t1", "t2", "-n", "1").splitlines()
    assert ["t2" in lines[0], "t1" in lines[1]] == [True, True]


def test_tail_filters_by_key_header_and_paths_of_the_payload(terminal: Terminal) -> None:
    terminal.ok("pub", "f", '{"total": 50, "items": [{"sku": "a"}]}', "-k", "ada", "-H", "ct=json")
    terminal.ok("pub", "f", '{"total": 150, "items": [{"sku": "b"}], "vip": true}', "-k", "bob")
    terminal.ok("pub", "f", '"text"', "-k", "ada")

    def found(*filters: str) -> list[object]:
        options = [part for each in filters for part in ("--filter", each)]
        return [event["offset"] for event in terminal.json("tail", "f", *options)]

    assert found("key=ada") == [1, 3]
    assert found("header.ct=json") == [1]
    assert found(".total>=100") == [2]
    assert found(".items[0].sku=a", "key=ada") == [1]
    assert found(".vip=true") == [2]
    assert found(".~ex") == [3]
    done = terminal.run("tail", "f", "--filter", "nonsense")
    assert done.returncode == 2
    assert "header.NAME=VALUE" in done.stderr


def test_tail_finds_a_rare_event_far_back(terminal: Terminal) -> None:
    terminal.ok("pub", "rare", '"needle"', "-k", "n")
    terminal.ok("pub", "rare", '"hay"', "-n", "1300", "-k", "h")
    assert [each["payload"] for each in terminal.json("tail", "rare", "--filter", "key=n")] == ["needle"]


def test_tail_since_shows_everything_since(terminal: Terminal) -> None:
    terminal.ok("pub", "since", stdin="".join(f"{number}\n" for number in range(700)))
    assert len(terminal.json("tail", "since", "--since", "10m")) == 700
    assert terminal.json("tail", "since", "--since", "2999-01-01T00:00:00Z") == []
    assert terminal.run("tail", "since", "--since", "tomorrow").returncode == 2


def test_following_shows_what_is_stored_and_then_what_comes_without_a_gap(terminal: Terminal) -> None:
    terminal.ok("pub", "fa", stdin="1\n2\n3\n")
    terminal.ok("pub", "fb", '"b"')
    with terminal.running("tail", "fa", "fb", "--follow", "-n", "2", "--json") as command:
        first = [json.loads(command.line())["payload"] for _ in range(3)]
        assert first == [2, 3, "b"]
        terminal.ok("pub", "fa", stdin="4\n5\n")
        assert [json.loads(command.line())["payload"] for _ in range(2)] == [4, 5]
        assert command.interrupt() == 130


def test_no_group_appears_by_looking(terminal: Terminal) -> None:
    terminal.ok("pub", "looked", "1")
    terminal.ok("tail", "looked")
    assert terminal.json("groups", "list", "looked") == []


def test_an_event_cannot_repaint_the_screen_of_whoever_looks(terminal: Terminal) -> None:
    terminal.ok("pub", "evil", '"\\u001b[2J\\u009b31m"', "-k", "a\x1b]0;title\x07b", "-H", "x=\x1b[1m")
    line = terminal.ok("tail", "evil")
    assert "\x1b" not in line
    assert "\x9b" not in line
    assert "\\x1b]0;title\\x07b" in line


def test_a_node_that_is_killed_and_comes_back_is_waited_for_and_nothing_is_missed(tmp_path: Path) -> None:
    with Serving(folder=tmp_path, engine="sqlite") as node:
        terminal = Terminal(url_of(node))
        port = str(node.port)
        terminal.ok("pub", "t", "1")
        with (
            terminal.running("tail", "t", "--follow", "--json") as tail,
            terminal.running("sub", "t", "-g", "g", "--json") as sub,
        ):
            assert [json.loads(each.line())["payload"] for each in (tail, sub)] == [1, 1]
            node.kill()
            until(lambda: "waiting" in tail.errors() and "waiting" in sub.errors())
            node.command[node.command.index("--port") + 1] = port
            node.env = clean_environment()
            node.launch()
            assert node.boot["type"] == "Sys.BootComplete"
            terminal.ok("pub", "t", stdin="2\n3\n")
            assert [json.loads(tail.line())["payload"] for _ in range(2)] == [2, 3]
            seen = [json.loads(sub.line())["payload"]]
            while seen[-1] != 3:
                seen.append(json.loads(sub.line())["payload"])
            assert [each for each in seen if each != 1] == [2, 3]  # 1 may come again: at least once
            assert (tail.interrupt(), sub.interrupt()) == (130, 130)
