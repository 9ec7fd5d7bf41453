"""Headers that only the node writes: who published an event, on which connection, with which rights.

Consumers may rely on them, so what a client sends under these names is replaced. They are put on as bytes made once per
connection; encoding them again for every event would cost more than checking whether it may be published.

Where no tokens are configured nothing is proven, and headers stay as they were sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from mainspring.bus.access import Caller, Who

SEALED: Final = frozenset(("agent_id", "sid", "scopes"))

_encode = msgspec.json.Encoder().encode


def sealed(headers: Mapping[str, str] | None, who: Who) -> dict[str, str] | None:
    """The headers of an event of this caller, as they are stored."""
    if not isinstance(who, Caller) or not who.is_proven:
        return None if headers is None else dict(headers)
    return {**{name: value for name, value in (headers or {}).items() if name not in SEALED}, **who.headers}


def sealed_text(headers: Mapping[str, str] | None, members: bytes) -> bytes | None:
    """The same as JSON text. `members` is `Caller.sealed`: the text of the members to put on, empty for none."""
    if not members:
        return _encode(headers) if headers else None
    kept = {name: value for name, value in headers.items() if name not in SEALED} if headers else None
    if not kept:
        return b"{%b}" % members
    return b"%b,%b}" % (_encode(kept)[:-1], members)
