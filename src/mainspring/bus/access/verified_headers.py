"""Headers that only the node writes: who published an event, on which connection, with which rights.

Consumers may rely on them, so what a client sends under these names is replaced. They are put on as bytes made once per
connection; encoding them again for every event would cost more than checking whether it may be published.

Where no tokens are configured nothing is proven, and headers stay as they were sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import msgspec

from mainspring.bus.access.access import Caller, Who

SEALED: Final = frozenset(("agent_id", "sid", "scopes"))

_encode = msgspec.json.Encoder().encode


def sealed(headers: Mapping[str, str] | None, who: Who) -> dict[str, str] | None:
    """The headers of an event of this caller, as they are stored."""
    if not isinstance(who, Caller) or not who.is_proven:
        return None if headers is None else dict(headers)
    return {**{name: value for name, value in (headers or {}).items() if name not in SEALED}, **who.headers}


class Seal:
    """The same as JSON text, joined once for many events.

    `proven` is `Caller.sealed`, the text of the members that say who; `stamp` a member that is put on besides. Either
    may be empty.
    """

    __slots__ = ("_is_proven", "_members", "alone")

    def __init__(self, proven: bytes, stamp: bytes = b"") -> None:
        self._members = b"%b,%b" % (proven, stamp) if proven and stamp else proven or stamp
        self._is_proven = bool(proven)
        self.alone: bytes | None = (
            b"{%b}" % self._members if self._members else None
        )  # for an event without headers of its own

    def put_on(self, headers: Mapping[str, str]) -> bytes | None:
        """The headers of an event, with what is put on."""
        if not self._members:
            return _encode(headers)
        kept = {name: value for name, value in headers.items() if not (self._is_proven and name in SEALED)}
        return b"%b,%b}" % (_encode(kept)[:-1], self._members) if kept else self.alone


@lru_cache(maxsize=1_024)  # a connection's requests all get the same one
def seal_of(proven: bytes, stamp: bytes = b"") -> Seal:
    """The seal of these members."""
    return Seal(proven, stamp)
