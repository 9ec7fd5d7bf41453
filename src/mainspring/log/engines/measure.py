"""How big an event is, and whether it says "this key is gone". Every engine must answer alike."""

from __future__ import annotations

from typing import Protocol


class _Measurable(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def key(self) -> str | None: ...
    @property
    def headers(self) -> bytes | None: ...
    @property
    def payload(self) -> bytes: ...


def event_bytes(event: _Measurable) -> int:
    """The bytes of payload, headers, key and id: what retention by size counts."""
    id, key, headers = event.id, event.key, event.headers
    size = len(event.payload) + (len(id) if id.isascii() else len(id.encode()))
    if key is not None:
        size += len(key) if key.isascii() else len(key.encode())
    if headers is not None:
        size += len(headers)
    return size


def is_tombstone(payload: bytes) -> bool:
    """A tombstone's payload is JSON `null`; JSON allows white space around it."""
    return len(payload) < 64 and payload.strip(b" \t\r\n") == b"null"
