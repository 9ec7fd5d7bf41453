"""Who may publish and subscribe, and how callers prove who they are.

access      the decision: scopes of tokens, access lists of topics, the program's checker; headers only the node writes
tokens      secrets that say who their bearer is and what it may do, as lines in settings or in a file
patterns    `*` and `**` in names of topics, agents and groups
"""

from __future__ import annotations

from mainspring.bus.access.access import Access, Action, Caller, Checker, Who, origin_of
from mainspring.bus.access.tokens import (
    SECRET_BYTES,
    Token,
    TokenBook,
    TokenSource,
    lifetime_ms,
    moment_text,
    new_token,
    read_tokens,
)

__all__ = [
    "SECRET_BYTES",
    "Access",
    "Action",
    "Caller",
    "Checker",
    "Token",
    "TokenBook",
    "TokenSource",
    "Who",
    "lifetime_ms",
    "moment_text",
    "new_token",
    "origin_of",
    "read_tokens",
]
