"""A guest that echoes for a few thousand clients and waits in one place only: POLL, in the node's loop.

    mainspring serve --loop-socket /tmp/loop.sock &
    python examples/sysloop_echo.py /tmp/loop.sock 2000

It opens a TCP port, hands every connection's descriptor to the node, watches it, and does whatever POLL says next. No
thread, no select, no asyncio: the node's epoll does the waiting. With a number as second argument it plays that many
clients too, all connected at once, and checks what they get back.
"""

from __future__ import annotations

import contextlib
import resource
import socket
import sys
import threading
from pathlib import Path

from mainspring.guests import GuestClient, Readiness, connect

LISTENER, FIRST_CONNECTION = 1, 2  # watch ids
ANY_END = Readiness.READABLE | Readiness.HUP


class EchoGuest:
    """Connections by watch id; what a slow client has not taken yet waits here and not in a blocked call."""

    def __init__(self, loop: GuestClient) -> None:
        self._loop = loop
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self._listener.setblocking(False)
        self._connections: dict[int, tuple[socket.socket, int]] = {}
        self._unsent: dict[int, bytes] = {}
        self._next = FIRST_CONNECTION
        self.address: tuple[str, int] = self._listener.getsockname()
        loop.watch(loop.attach(self._listener), Readiness.READABLE, LISTENER)

    def run(self, until_served: int | None = None) -> None:
        """Serves for ever, or until so many connections have come and gone."""
        served = 0
        while until_served is None or served < until_served:
            for event in self._loop.poll().events:
                if event.id == LISTENER:
                    self._accept()
                elif event.id in self._connections:
                    served += self._serve(event.id)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                connection, _ = self._listener.accept()
                connection.setblocking(False)
                handle = self._loop.attach(connection)
                self._loop.watch(handle, ANY_END, self._next)
                self._connections[self._next] = (connection, handle)
                self._next += 1

    def _serve(self, watch_id: int) -> bool:
        """Echoes what is there, or what is left from before; whether the connection has ended."""
        connection, handle = self._connections[watch_id]
        held = self._unsent.pop(watch_id, b"")
        try:
            data = held or connection.recv(65536)
            if data:
                sent = connection.send(data)
                if data[sent:]:
                    self._unsent[watch_id] = data[sent:]
                if bool(data[sent:]) != bool(held):
                    self._watch_again(watch_id, handle, bool(data[sent:]))
                return False
        except BlockingIOError:
            return False
        except ConnectionError:
            pass
        self._loop.end(handle)  # its watch goes with it
        connection.close()
        del self._connections[watch_id]
        return True

    def _watch_again(self, watch_id: int, handle: int, full: bool) -> None:
        """A client that does not read is watched for room to write, and nothing more is read from it until then."""
        self._loop.unwatch(watch_id)
        self._loop.watch(handle, Readiness.WRITABLE if full else ANY_END, watch_id)


def play_clients(address: tuple[str, int], count: int) -> int:
    """Connects `count` clients at once, lets each say its name, and counts the right echoes."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(address)) for _ in range(count)]
        for number, client in enumerate(clients):
            client.sendall(b"client %d" % number)
        return sum(client.recv(100) == b"client %d" % number for number, client in enumerate(clients))


def main(path: str, clients: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with connect(Path(path)) as loop:
        guest = EchoGuest(loop)
        print(f"listening on {guest.address[0]}:{guest.address[1]}", flush=True)
        if not clients:
            guest.run()
        right: list[int] = []
        crowd = threading.Thread(target=lambda: right.append(play_clients(guest.address, clients)))
        crowd.start()
        guest.run(until_served=clients)
        crowd.join()
        print(f"{right[0]} of {clients} clients got their echo", flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python examples/sysloop_echo.py SOCKET [CLIENTS], SOCKET as given to mainspring serve")
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0)
