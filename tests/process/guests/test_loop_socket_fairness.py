"""A guest that asks for a lot, all the time, leaves room for others."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.guests import arm, poll
from tests.support.loop_server import LOOPS, Served, serving

# A process of its own, because it must be as quick as the server: sends the same bytes again and again, and reads.
GREEDY = """
import select, socket, sys
sock = socket.socket(socket.AF_UNIX)
sock.connect(sys.argv[1])
first, again = (bytes.fromhex(sys.stdin.readline()) for _ in range(2))
sock.setblocking(False)
left, begun = first, False
while True:
    readable, writable, _ = select.select([sock], [sock], [])
    try:
        if readable and not sock.recv(1 << 20):
            break
        if writable:
            left = left[sock.send(left) :]
            if not left:
                if not begun:
                    begun = True
                    print("begun", flush=True)
                left = again
    except BlockingIOError:
        pass
"""

REQUESTS = {  # what it sends first, what it sends for ever, and how much of that may pass for one request of another
    "answers that fill a buffer": (
        b"".join(arm(number, 0, interval=1) for number in range(1, 3001)),
        poll(2**32 - 1),
        20,
    ),
    "many small answers": (b"", poll(), 2000),
}


@pytest.fixture(params=LOOPS)
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    with serving(LOOPS[request.param]) as running:
        yield running


@pytest.mark.parametrize("wish", REQUESTS)
def test_a_greedy_guest_does_not_keep_the_node_from_others(served: Served, wish: str) -> None:
    first, again, most = REQUESTS[wish]
    greedy = subprocess.Popen(
        [sys.executable, "-S", "-c", GREEDY, str(served.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert greedy.stdin is not None
        assert greedy.stdout is not None
        greedy.stdin.write(f"{first.hex()}\n{(again * 1000).hex()}\n")
        greedy.stdin.flush()
        assert greedy.stdout.readline() == "begun\n"
        with served.connect() as guest:
            counts = []
            for _ in range(20):
                assert guest.ask(poll()).events == []
                counts.append(served.server.polls)
        passed = [later - earlier for earlier, later in itertools.pairwise(counts)]
        assert min(passed) < most, "polls of the greedy one for one of ours"
    finally:
        greedy.kill()
        greedy.wait()
        greedy.communicate()
