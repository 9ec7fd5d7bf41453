"""Server-sent events: the text format, and nothing about where events come from.

A message is a few `field: value` lines and an empty line. A value cannot hold a line break, but JSON text may (between
its tokens), so such data is spread over several `data:` lines; the reader joins them with a line feed, which means the
same to a JSON parser. The id must hold no NUL and no line break; cursors never do.
"""

from __future__ import annotations

from typing import Final

HEARTBEAT: Final = b":\n\n"  # a comment: keeps proxies from giving up, and finds readers that are gone


def message(data: bytes, *, id: str = "", event: str = "") -> bytes:
    """One message. Readers dispatch by `event`, and send `id` back when they reconnect."""
    parts: list[bytes] = []
    if id:
        parts.append(b"id: " + id.encode())
    if event:
        parts.append(b"event: " + event.encode())
    if b"\n" in data or b"\r" in data:
        parts.extend(b"data: " + line for line in data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n"))
    else:
        parts.append(b"data: " + data)
    return b"\n".join(parts) + b"\n\n"


def retry(ms: int) -> bytes:
    """How long a reader should wait before it reconnects."""
    return b"retry: %d\n\n" % ms


def place(id: str) -> bytes:
    """Only an id: no message for the reader's program, but what the reader sends back when it reconnects."""
    return b"id: " + id.encode() + b"\n\n"
