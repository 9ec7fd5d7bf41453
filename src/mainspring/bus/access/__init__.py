"""Who may do what: tokens, access lists, patterns, and headers that only the node writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.lazy_imports import lazy_imports

if TYPE_CHECKING:
    from mainspring.bus.access.tokens import SECRET_BYTES as SECRET_BYTES
    from mainspring.bus.access.tokens import Token as Token
    from mainspring.bus.access.tokens import TokenBook as TokenBook
    from mainspring.bus.access.tokens import TokenSource as TokenSource
    from mainspring.bus.access.tokens import lifetime_ms as lifetime_ms
    from mainspring.bus.access.tokens import moment_text as moment_text
    from mainspring.bus.access.tokens import new_token as new_token
    from mainspring.bus.access.tokens import read_tokens as read_tokens

_HOMES: Final = {
    "SECRET_BYTES": "mainspring.bus.access.tokens",
    "Token": "mainspring.bus.access.tokens",
    "TokenBook": "mainspring.bus.access.tokens",
    "TokenSource": "mainspring.bus.access.tokens",
    "lifetime_ms": "mainspring.bus.access.tokens",
    "moment_text": "mainspring.bus.access.tokens",
    "new_token": "mainspring.bus.access.tokens",
    "read_tokens": "mainspring.bus.access.tokens",
}
__getattr__ = lazy_imports(globals(), _HOMES)  # eagerly they would import the bus, which imports them

__all__ = [
    "SECRET_BYTES",
    "Token",
    "TokenBook",
    "TokenSource",
    "lifetime_ms",
    "moment_text",
    "new_token",
    "read_tokens",
]
