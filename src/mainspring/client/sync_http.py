"""One kept HTTP connection to a node, for code that waits: the command line and the outbox's drainer.

Nothing but the standard library: a command that asks one question should not pay for an async HTTP client first. An
answer that is an error arrives as `NodeRefused` with the node's own code, message and remedy; a node that cannot be
reached as `CannotConnect`, which says how to start one. Whether a request that failed half-way took effect is not
known here; who repeats one gives it an id.
"""

from __future__ import annotations

import http.client
import json
import select
import socket
import ssl as ssl_module
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec

from mainspring.client.errors import BadArgument, CannotConnect, NodeRefused
from mainspring.client.frames import claims_of, encode, split_address, warn_of_plain_tokens

PATIENCE_S: Final = 30.0  # a node that says nothing for so long is as good as gone
JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
Params = Mapping[str, str | int | None] | None  # those that are None are left out
_BROKEN: Final = (OSError, http.client.HTTPException)


def path(*parts: str | int) -> str:
    """A path of these segments, each percent-encoded: names may hold anything, but not nothing."""
    if "" in parts:
        raise BadArgument(
            "a name is empty", remedy="write the name of a topic or group; in a shell, is a variable unset?"
        )
    return "".join(f"/{quote(str(part), safe='')}" for part in parts)


class NodeConnection:
    """Requests to the node at `url` (ws, wss, http or https), one after the other. Not for several threads.

    `url` may name several nodes of one log, separated by commas; the first that can be reached is asked.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        patience_s: float = PATIENCE_S,
        ssl: ssl_module.SSLContext | None = None,
    ) -> None:
        self._addresses = deque(split_address(one.strip()) for one in url.split(","))
        warn_of_plain_tokens((each.geturl() for each in self._addresses), token)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._patience_s = patience_s
        self._ssl = ssl
        self._kept: http.client.HTTPConnection | None = None

    @property
    def address(self) -> str:
        """Where the node is, for people."""
        secure, host, port = self._first()
        shown = f"[{host}]" if ":" in host else host
        return f"{'https' if secure else 'http'}://{shown}:{port}"

    def __enter__(self) -> NodeConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the connection back; the next request opens another."""
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.close()

    def abort(self) -> None:
        """End the connection under a thread that waits for an answer."""
        kept = self._kept
        if kept is not None and kept.sock is not None:
            with suppress(OSError):
                kept.sock.shutdown(socket.SHUT_RDWR)

    # -- asking

    def get(self, path: str, **params: str | int | None) -> Any:
        """The decoded answer of a GET."""
        return self.call("GET", path, params=params)

    def call(
        self, method: str, path: str, body: bytes | None = None, *, content_type: str = JSON, params: Params = None
    ) -> Any:
        """One request; the decoded answer, None where there is none."""
        data = self.fetch(method, path, body, content_type=content_type, params=params)
        if not data:
            return None
        try:
            return msgspec.json.decode(data)
        except msgspec.DecodeError:
            raise self._no_node() from None

    def fetch(
        self, method: str, path: str, body: bytes | None = None, *, content_type: str = JSON, params: Params = None
    ) -> bytes:
        """One request; the bytes of the answer."""
        response, data = self._exchange(method, path, body, content_type, params)
        if response.status >= 400:
            raise self._refusal(response, data)
        return data

    def ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """What the kernel answers to a command or a query: its reply or its error, as the message it is.

        Raises NodeRefused where it was not the kernel that refused, as with a token that does not reach so far.
        """
        response, data = self._exchange("POST", "/messages", encode(message), JSON, None)
        try:
            told = json.loads(data)  # keeps large integers as they are
        except ValueError:
            told = None
        if response.status >= 400:
            error = told.get("error") if isinstance(told, dict) else None
            if not isinstance(error, dict):
                raise self._refusal(response, data)
            return error
        if not isinstance(told, dict) or "kind" not in told:
            raise self._no_node()
        return told

    def _exchange(
        self, method: str, path: str, body: bytes | None, content_type: str, params: Params
    ) -> tuple[http.client.HTTPResponse, bytes]:
        """One request; the whole answer, whatever it says."""
        try:
            response = self._request(method, path, body, content_type, params)
            data = response.read()
        except BaseException as error:
            self.close()  # also interrupted half-way: what is left of the answer is nobody's
            if isinstance(error, _BROKEN):
                raise self._unreachable(error) from error
            raise
        if response.will_close:
            self.close()
        return response, data

    @contextmanager
    def lines(self, path: str, *, params: Params = None) -> Iterator[Iterator[bytes]]:
        """The answer of a GET, line by line as it comes. The connection is given up afterwards."""
        try:
            response = self._request("GET", path, None, JSON, params)
            if response.status >= 400:
                raise self._refusal(response, response.read())
            yield self._each_line(response)
        except _BROKEN as error:
            raise self._unreachable(error) from error
        finally:
            self.close()

    def _each_line(self, response: http.client.HTTPResponse) -> Iterator[bytes]:
        try:
            while line := response.readline():
                yield line
        except _BROKEN as error:
            raise self._unreachable(error) from error

    def _request(
        self, method: str, path: str, body: bytes | None, content_type: str, params: Params
    ) -> http.client.HTTPResponse:
        given = {name: value for name, value in (params or {}).items() if value is not None}
        query = urlencode({**claims_of(self._addresses[0]), **given})
        below = self._addresses[0].path.rstrip("/") + path  # a node may be mounted in a web application
        target = f"{below}?{query}" if query else below
        headers = {**self._headers, "Accept": "*/*"}
        if body is not None:
            headers["Content-Type"] = content_type
        if self._kept is not None and _hung_up(self._kept):
            self.close()  # the node closed it while nothing was asked
        connection = self._kept = self._kept or self._open()
        connection.request(method, target, body, headers)
        return connection.getresponse()

    def _open(self) -> http.client.HTTPConnection:
        """A connection to the first node that takes one; the last one's error is left to the request."""
        for _ in range(len(self._addresses) - 1):
            connection = self._to_first()
            try:
                connection.connect()
            except OSError:
                self._addresses.rotate(-1)
            else:
                return connection
        return self._to_first()

    def _first(self) -> tuple[bool, str, int]:
        address = self._addresses[0]
        secure = address.scheme == "wss"
        return secure, address.hostname or "", address.port or (443 if secure else 80)

    def _to_first(self) -> http.client.HTTPConnection:
        secure, host, port = self._first()
        if not secure:
            return http.client.HTTPConnection(host, port, timeout=self._patience_s)
        context = self._ssl or ssl_module.create_default_context()
        return http.client.HTTPSConnection(host, port, timeout=self._patience_s, context=context)

    # -- what went wrong

    def _refusal(self, response: http.client.HTTPResponse, data: bytes) -> NodeRefused | CannotConnect:
        try:
            told = msgspec.json.decode(data)
        except msgspec.DecodeError:
            told = None
        if not isinstance(told, dict) or "code" not in told:
            return self._no_node()
        code, remedy = str(told["code"]), str(told.get("remedy") or "")
        message = str(told.get("message") or told.get("detail") or f"the node answered {response.status}")
        if response.status == 401:
            remedy = "give a valid token with --token or BUS_TOKEN; `mainspring token new` makes one"
        elif response.status == 403:
            remedy = remedy or "ask with the token of an agent that may, or change the topic's access lists"
        refused, wait_ms = NodeRefused(message, remedy=remedy, code=code), told.get("retry_after_ms")
        refused.retry_after_ms = wait_ms if isinstance(wait_ms, int) else 0
        return refused

    def _no_node(self) -> CannotConnect:
        return CannotConnect(
            f"what answers at {self.address} is no Mainspring node",
            remedy="give the node's address with --url or BUS_URL",
        )

    def _unreachable(self, error: Exception) -> CannotConnect:
        if isinstance(error, TimeoutError):
            return CannotConnect(
                f"the node at {self.address} did not answer within {self._patience_s:g} s",
                remedy="look at the node's log; it may be busy, or stopped in a debugger",
            )
        if isinstance(error, ssl_module.SSLError):
            return CannotConnect(
                f"no secure connection to {self.address}: {error.reason or error}",
                remedy="check the node's certificate, its name and its authority; SSL_CERT_FILE can name yours",
            )
        if isinstance(error, socket.gaierror):
            return CannotConnect(
                f"there is no host {self._addresses[0].hostname!r}: {error.strerror}",
                remedy="check the address given with --url or BUS_URL",
            )
        if isinstance(error, http.client.HTTPException) and not isinstance(error, OSError):
            return self._no_node() if isinstance(error, http.client.BadStatusLine) else self._cut(error)
        if isinstance(error, ConnectionResetError | BrokenPipeError):
            return self._cut(error)
        why = getattr(error, "strerror", None) or str(error)
        return CannotConnect(
            f"no node answers at {self.address}: {why}",
            remedy="start one with `mainspring serve`, or say where it is with --url or BUS_URL",
        )

    def _cut(self, error: Exception) -> CannotConnect:
        return CannotConnect(
            f"the node at {self.address} cut the connection: {type(error).__name__}",
            remedy="look at the node's log; if it was restarted, try again",
        )


def _hung_up(connection: http.client.HTTPConnection) -> bool:
    """Whether the other side has closed an idle connection: then there is something to read, namely its end."""
    if connection.sock is None:
        return False
    readable, _, _ = select.select([connection.sock], [], [], 0)
    return bool(readable)
