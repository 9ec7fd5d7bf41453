"""The loop socket: `sys/loop@v1` for guests in other processes.

- `server`: the listening socket and its connections. `session`: the loop and the descriptors of one connection.
- `wakeups`: the thread that waits for the guests' descriptors.
"""

from mainspring.guests.socket.server import LoopSocketServer, SocketTaken

__all__ = ["LoopSocketServer", "SocketTaken"]
