"""Commands and queries: what a client asks of the program itself rather than of the bus."""

from __future__ import annotations

from typing import Any

import msgspec

from mainspring.client.connection import Link


class MessageVerbs(Link):
    """The part of a client that talks to the node's kernel."""

    async def command(
        self, type: str, data: Any = None, *, id: str | None = None, timeout: float | None = None, reply: Any = None
    ) -> Any:
        """Send a command to whoever serves it; the data of its reply, decoded into the type `reply`.

        `timeout` is in seconds; without it the node's own counts. Raises NodeRefused with the code and the text of
        the error (`routing_error`: nobody serves it; `timeout`; `refused`: by the handler), and CannotConnect when
        the connection broke, in which case the command may have been carried out. A durable command that was given
        an `id` can be sent again then: it is carried out once, and every sender gets the one outcome.
        """
        return await self._ask("command", type, data, timeout, reply, id)

    async def query(self, type: str, data: Any = None, *, timeout: float | None = None, reply: Any = None) -> Any:
        """Ask something that changes nothing; otherwise like `command`."""
        return await self._ask("query", type, data, timeout, reply)

    async def _ask(
        self, kind: str, type: str, data: Any, timeout: float | None, reply: Any, id: str | None = None
    ) -> Any:
        asked: dict[str, Any] = {"kind": kind, "type": type, "data": {} if data is None else data}
        if id is not None:
            asked["id"] = id
        if timeout is not None:
            asked["timeout"] = timeout * 1000
        answer = (await self.http.call("POST", "/messages", asked)).get("data")
        return answer if reply is None else msgspec.convert(answer, reply)
