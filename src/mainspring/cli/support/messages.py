"""Messages to the kernel of a running node: over the unix socket of a node on this machine, or to an address.

Both give the same answers, so a command need not know which it has. What only the socket can do (events, and ids of
one's own) is refused at an address, with the remedy, instead of being dropped.

Who says where the node is, decides: `--socket` and `--url` first, then an address in `BUS_URL` or the settings file. If
nobody says anything, the socket of the node with this data directory is tried, because whoever may open it needs no
token; where none listens, the address every other command would use.
"""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Self

import msgspec
import typer

from mainspring.cli.support.options import TokenOption, UrlOption, token_for
from mainspring.cli.support.output import CommandFailed
from mainspring.loop import MonotonicClock
from mainspring.message import counted_ids
from mainspring.settings import Loaded, load_all
from mainspring.unix_socket import is_foreign, is_listening, place_to_ask

TIMEOUT_MS: Final = 30_000
LONGEST_MS: Final = 600_000  # that a node keeps an HTTP request open
_PATIENCE_MS: Final = 5_000  # beyond the request's own timeout, for a node that does not answer at all


class Wire:
    """One connection to a node's unix socket, for one command after the other."""

    def __init__(self, path: Path, timeout_ms: int = TIMEOUT_MS) -> None:
        self.path: Path = path
        self._ids = counted_ids()
        self._clock = MonotonicClock()
        self._timeout_ms = timeout_ms
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout((timeout_ms + _PATIENCE_MS) / 1000)
        if is_foreign(self.path):
            self._socket.close()
            raise CommandFailed(
                f"the socket {self.path} belongs to another user", remedy="say where the node is with --socket or --url"
            )
        try:
            self._socket.connect(str(self.path))
        except OSError as error:
            raise CommandFailed(
                f"no node listens on {self.path}: {error.strerror or error}",
                remedy="start one with `mainspring serve`, or say where it is with --socket or --url",
            ) from None
        self._lines = self._socket.makefile("rb")

    def close(self) -> None:
        self._lines.close()
        self._socket.close()

    def abort(self) -> None:
        """End the connection under a thread that waits for an answer."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, kind: str, type: str, data: Any, **metadata: Any) -> str:
        """Send a message; its id."""
        given = {"id": self._ids(), "timestamp": self._clock.wall_ms(), "timeout": self._timeout_ms, **metadata}
        message = {"kind": kind, "type": type, "data": data, "metadata": given}
        try:
            self._socket.sendall(msgspec.json.encode(message) + b"\n")
        except OSError:
            raise self._silent() from None
        return str(given["id"])

    def answer(self) -> dict[str, Any]:
        """The next line."""
        try:
            line = self._lines.readline()
        except OSError:
            line = b""
        if not line:
            raise self._silent()
        found: dict[str, Any] = json.loads(line)
        return found

    def ask(self, kind: str, type: str, data: Any, **metadata: Any) -> dict[str, Any]:
        """The answer to a command or a query: its reply or its error."""
        self.send(kind, type, data, **metadata)
        return self.answer()

    def tell(self, type: str, data: Any, **metadata: Any) -> str | dict[str, Any]:
        """Send an event; its id, or the error it met.

        An event gets no answer; a ping behind it shows that it was taken, or what was wrong with it.
        """
        ident = self.send("event", type, data, **metadata)
        ping = self.send("query", "Syscall.Ping", {"payload": None})
        answer = self.answer()
        return ident if answer["metadata"].get("causation") == ping else answer

    def _silent(self) -> CommandFailed:
        return CommandFailed("the node closed the connection without an answer", remedy="look at the node's log")


class HttpWire(Wire):
    """The same at an address. It connects with the first question."""

    def __init__(self, url: str, token: str | None, timeout_ms: int = TIMEOUT_MS) -> None:
        from mainspring.client import NodeConnection

        self._timeout_ms = timeout_ms
        self._node = NodeConnection(url, token, patience_s=(timeout_ms + _PATIENCE_MS) / 1000)

    def close(self) -> None:
        self._node.close()

    def abort(self) -> None:
        self._node.abort()

    def ask(self, kind: str, type: str, data: Any, **metadata: Any) -> dict[str, Any]:
        if self._timeout_ms > LONGEST_MS:
            raise CommandFailed(
                f"at an address the longest timeout is {LONGEST_MS} ms", remedy="give a shorter one, or use --socket"
            )
        return self._node.ask({"kind": kind, "type": type, "data": data, "timeout": self._timeout_ms, **metadata})

    def tell(self, type: str, data: Any, **metadata: Any) -> str | dict[str, Any]:
        raise CommandFailed(
            "an event of the kernel can be sent to a node's unix socket only, not to an address",
            remedy="on the node's machine use --socket; to put an event on a topic use `mainspring pub TOPIC DATA`",
        )


@dataclass(frozen=True)
class WireOptions:
    """Where the node is whose kernel is asked, and who asks."""

    socket_path: Annotated[
        Path | None,
        typer.Option(
            "--socket",
            "--kernel-socket",
            help="The unix socket of a node on this machine.  [default: that of the data directory, if one listens]",
        ),
    ] = None
    url: UrlOption = None
    token: TokenOption = None

    def __post_init__(self) -> None:
        if self.socket_path is not None and self.url is not None:
            raise typer.BadParameter("give either --socket or --url")

    def open(self, timeout_ms: int = TIMEOUT_MS, loaded: Loaded | None = None, *, owner_of_data: bool = False) -> Wire:
        """A connection to the node; `loaded` are the settings in force.

        With `owner_of_data` no node will do that happens to have the usual address: without an option that names one,
        it is the one whose socket belongs to the data directory.
        """
        if self.socket_path is not None:
            return Wire(self.socket_path, timeout_ms)
        loaded = loaded if loaded is not None else load_all()
        settings = loaded.settings
        if self.url is None and (owner_of_data or loaded.sources["url"] == "default"):
            place = place_to_ask(settings.kernel_socket, settings.data, "kernel.sock")
            if owner_of_data or settings.kernel_socket or is_listening(place):
                return Wire(place, timeout_ms)
        if self.url is not None:
            return HttpWire(self.url, self.token, timeout_ms)
        return HttpWire(settings.url, token_for(loaded, self.token), timeout_ms)

    def ask(self, type: str, data: dict[str, Any], kind: str = "command", **opening: Any) -> dict[str, Any]:
        """The data of the node's reply to the members that are not None; an error of the node is raised."""
        with self.open(**opening) as wire:
            return data_of(wire.ask(kind, type, {key: value for key, value in data.items() if value is not None}))


def data_of(answer: dict[str, Any]) -> dict[str, Any]:
    """The data of a node's reply; an error of the node is raised."""
    found: dict[str, Any] = answer["data"]
    if answer["kind"] == "error":
        from mainspring.client import NodeRefused

        raise NodeRefused(found.get("message", "the node refused"), remedy=found.get("remedy", ""))
    return found
