"""`mainspring pub`: one event, many, whole files, pipes that stay open, and input that is wrong."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

from tests.support.serving import PATIENCE_S
from tests.support.terminal import Terminal, until


def payloads(terminal: Terminal, topic: str) -> list[object]:
    return [each["payload"] for each in terminal.json("tail", topic, "-n", "100000")]


def test_an_event_with_key_and_headers_is_stored_and_its_place_is_told(terminal: Terminal) -> None:
    said = terminal.ok("pub", "one", '{"sku": 1}', "--key", "c-17", "-H", "ct=json", "-H", "trace=a=b")
    assert said.startswith("published to one 0:1  ")
    (event,) = terminal.json("tail", "one")
    assert (event["key"], event["headers"], event["payload"]) == ("c-17", {"ct": "json", "trace": "a=b"}, {"sku": 1})


def test_an_id_is_stored_once(terminal: Terminal) -> None:
    (first,) = terminal.json("pub", "once", "1", "--id", "order-1")
    (second,) = terminal.json("pub", "once", "1", "--id", "order-1")
    assert second["offset"] == first["offset"] == 1
    assert second["duplicate"] is True
    assert "it was there already" in terminal.ok("pub", "once", "1", "--id", "order-1")


def test_a_file_and_plain_text_are_published(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "order.json").write_text('{\n  "sku": 2\n}\n')
    terminal.ok("pub", "files", f"@{tmp_path / 'order.json'}")
    terminal.ok("pub", "files", "not json at all", "--text")
    assert payloads(terminal, "files") == [{"sku": 2}, "not json at all"]


def test_every_line_of_a_long_pipe_arrives_once_and_in_order(terminal: Terminal) -> None:
    lines = "".join(f'{{"n": {number}}}\n' for number in range(12_000))
    assert terminal.json("pub", "lines", stdin=lines) == [{"topic": "lines", "count": 12_000}]
    assert payloads(terminal, "lines") == [{"n": number} for number in range(12_000)]


def test_one_event_many_times(terminal: Terminal) -> None:
    assert "published 250 events to many" in terminal.ok("pub", "many", '"x"', "--count", "250")
    assert terminal.json("topics", "list", "many")[0]["events"] == 250


def test_a_line_is_published_while_the_pipe_stays_open(terminal: Terminal) -> None:
    terminal.ok("topics", "create", "live")
    with terminal.running("pub", "live", "-") as command:
        command.write('{"n": 1}\n')
        until(lambda: payloads(terminal, "live"), lambda found: found == [{"n": 1}])
        command.write("2\n3")
        assert command.process.stdin is not None
        command.process.stdin.close()
        assert command.process.wait(30) == 0
    assert payloads(terminal, "live") == [{"n": 1}, 2, 3]


def test_lines_before_a_bad_one_are_stored_and_the_bad_one_is_named(terminal: Terminal) -> None:
    first, second = terminal.fails("pub", "bad", stdin='1\n\n2\n{"a":\n3\n')
    assert first.startswith("mainspring: line 4 is not JSON")
    assert first.endswith("2 events are stored")
    assert "--text" in second
    assert payloads(terminal, "bad") == [1, 2]


def test_a_line_the_node_refuses_is_named_and_those_before_it_are_stored(terminal: Terminal) -> None:
    large = json.dumps("x" * (2 << 20))
    first, *_ = terminal.fails("pub", "large", stdin=f"1\n2\n{large}\n3\n")
    assert "line 3 was refused" in first
    assert "2 events before it are stored" in first
    assert payloads(terminal, "large") == [1, 2]


def test_what_tail_writes_can_be_published_again_with_key_and_headers(terminal: Terminal) -> None:
    terminal.ok("pub", "source", '{"sku": 1}', "-k", "a", "-H", "ct=json")
    copied = terminal.ok("tail", "source", "--json")
    terminal.ok("pub", "copy", "--envelopes", "-H", "via=copy", stdin=copied)
    (event,) = terminal.json("tail", "copy")
    assert (event["key"], event["payload"]) == ("a", {"sku": 1})
    assert event["headers"]["via"] == "copy"


def test_a_delayed_event_is_not_there_yet(terminal: Terminal) -> None:
    (place,) = terminal.json("pub", "later", "1", "--delay", "1h")
    assert place["offset"] == 0
    assert place["not_before"] > 0
    assert "later" in terminal.ok("pub", "later", "1", "--delay", "90s")


def test_what_cannot_mean_anything_is_a_usage_error(terminal: Terminal) -> None:
    for wrong in (
        ["pub", "t", "1", "-H", "noequals"],
        ["pub", "t", "1", "--delay", "soon"],
        ["pub", "t", "1", "--count", "0"],
        ["pub", "t", "1", "--count", "2", "--id", "x"],
        ["pub"],
    ):
        done = terminal.run(*wrong)
        assert done.returncode == 2, wrong
        assert "Usage" in done.stderr


def test_data_that_is_not_json_is_told_with_the_remedy(terminal: Terminal) -> None:
    first, second = terminal.fails("pub", "t", "{sku: 1}")
    assert first.startswith("mainspring: DATA is not JSON")
    assert "quote it" in second
    first, _ = terminal.fails("pub", "t", "@/no/such/file")
    assert "cannot read /no/such/file" in first


def test_a_long_pipe_shows_its_progress_to_whoever_watches_and_leaves_the_output_clean(terminal: Terminal) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "mainspring", "pub", "watched", "--json"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=terminal.environment({"TERM": "xterm", "COLUMNS": "100"}),
    )
    os.close(theirs)
    assert process.stdin is not None
    process.stdin.write(b"1\n" * 1000)
    process.stdin.flush()
    seen = b""
    while b"1000/" not in seen:
        seen += os.read(ours, 65536)
    said, _ = process.communicate(b"2\n", timeout=PATIENCE_S)
    os.close(ours)
    assert json.loads(said) == {"topic": "watched", "count": 1001}
