"""What a capability is to the stream that carries its requests."""

from __future__ import annotations

from typing import Protocol


class Capability(Protocol):
    """One open capability: it answers requests one at a time.

    `answer` gives the payload of an OK response, raises `RequestRefused` for an error response, or gives None when it
    has to wait first; then `resume` is called until it gives the payload. Neither ever blocks. `room` is how many bytes
    the whole response frame may have; it is never less than `stream.RESERVE`.
    """

    trace: str  # the "where" of its error frames

    def answer(self, op: int, rid: int, payload: bytes, room: int) -> bytes | None: ...

    def resume(self, room: int) -> bytes | None: ...

    def interrupt(self) -> None:
        """Lets the next `resume` give what there is."""

    def close(self) -> None:
        """Gives back what it holds of the system."""
