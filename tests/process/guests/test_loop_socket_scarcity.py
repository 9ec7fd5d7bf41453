"""A node that has run out of descriptors: it says so, does not spin, and goes on when some are free again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.guests import Host, poll
from tests.support.loop_server import Visitor

NODE = """
import asyncio, resource, sys
from mainspring.loop import MonotonicClock
from mainspring.guests.socket import LoopSocketServer

async def main():
    server = LoopSocketServer(sys.argv[1], clock=MonotonicClock())
    await server.start()
    print("listening", flush=True)
    await asyncio.Event().wait()

resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
asyncio.run(main())
"""


@pytest.fixture
def poor_node(tmp_path: Path) -> Iterator[Path]:
    node = subprocess.Popen(
        [sys.executable, "-c", NODE, str(tmp_path / "l")], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert node.stdout is not None
    assert node.stdout.readline() == b"listening\n"
    yield tmp_path / "l"
    node.terminate()
    _, errors = node.communicate(timeout=30)
    assert b"Traceback" not in errors


def test_descriptors_that_got_lost_end_the_connection_with_a_word(poor_node: Path, host: Host) -> None:
    events = [host.event() for _ in range(60)]
    with Visitor(poor_node) as guest:
        guest.send(poll(), *events)
        (refusal,) = guest.rest()
        assert refusal.error == "too many descriptors"
    with Visitor(poor_node) as guest:
        assert guest.ask(poll(), events[0]).status == 1, "what came through was closed again"


def test_guests_who_find_no_room_are_served_when_others_have_left(poor_node: Path) -> None:
    guests = [Visitor(poor_node) for _ in range(30)]
    for guest in guests:
        guest.send(poll())
    for number, guest in enumerate(guests):  # in the order they came: the first must leave for the last to be served
        assert guest.receive().status == 1, f"guest {number}"
        guest.sock.close()
