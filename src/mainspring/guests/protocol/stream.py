"""A capability's request/response stream, without any I/O: bytes are offered, bytes are read.

The guest in this process and the loop socket both drive this one class. `offer` carries out whole frames in order; the
tail of an unfinished frame is kept. It takes a frame only when its answer is sure to fit what is unread, so nothing is
ever carried out and then not answered: bytes that are not taken are the caller's, who offers them again after reading.

When a request has to wait (POLL), `waiting` is true and nothing more is taken until `resume` has answered it.
"""

from __future__ import annotations

from mainspring.guests.errors import Code, RequestRefused
from mainspring.guests.protocol import zcl1

OUTPUT_LIMIT = 65536  # bytes of unread answers; with it a guest that never reads is held back
RESERVE = 512  # more than any answer but those that adapt to the room they get


class GuestCapability:
    """One open capability: it answers requests one at a time.

    `answer` gives the payload of an OK response, raises `RequestRefused` for an error response, or gives None when it
    has to wait first; then `resume` is called until it gives the payload. Neither ever blocks. `room` is how many bytes
    the whole response frame may have; it is never less than `RESERVE`.
    """

    trace: str  # the "where" of its error frames

    def answer(self, op: int, rid: int, payload: bytes, room: int) -> bytes | None:
        raise NotImplementedError

    def resume(self, room: int) -> bytes | None:
        raise AssertionError("this capability never waits")

    def close(self) -> None:
        """Gives back what it holds of the system."""


class Stream:
    """One ZCL1 stream in front of one capability."""

    descriptor: int | None = None  # what a loop may watch instead of the stream, where there is something
    watchable = True

    def __init__(self, capability: GuestCapability) -> None:
        self.capability = capability
        self._input = bytearray()  # the beginning of one unfinished frame
        self._output = bytearray()
        self._waiting: zcl1.Zcl1Frame | None = None
        self.closed: bool = False  # nothing is taken any more; what was answered can still be read

    @property
    def waiting(self) -> bool:
        """A request waits for its moment; `resume` when it may have come."""
        return self._waiting is not None

    @property
    def unread(self) -> int:
        return len(self._output)

    def offer(self, data: bytes | bytearray | memoryview) -> int:
        """How many bytes were taken; CLOSED after bytes that were no ZCL1, AGAIN when answers must be read first."""
        if self.closed:
            return Code.CLOSED
        if self._waiting is not None:
            return Code.AGAIN
        if not data:
            return 0
        kept = len(self._input)
        self._input += data
        done, stopped = self._carry_out()
        if not stopped:
            del self._input[:done]
            return len(data)
        taken = max(done - kept, 0)
        # A frame that could not be carried out stays with the caller, but for the part that was here before.
        del self._input[max(done, kept) :]
        del self._input[:done]
        return taken or Code.AGAIN

    def _carry_out(self) -> tuple[int, bool]:
        """How far the input was carried out, and whether the rest must wait although it holds a whole frame."""
        done = 0
        while (frame := zcl1.next_frame(self._input, done)) is not None:
            room = OUTPUT_LIMIT - len(self._output)
            if room < RESERVE:
                return done, True
            if isinstance(frame, zcl1.Broken):
                self._refuse(frame.op, frame.rid, frame.fault)
                self.closed = True
                return len(self._input), False
            done = frame.end
            if frame.fault:
                self._refuse(frame.op, frame.rid, frame.fault)
                continue
            try:
                payload = self.capability.answer(frame.op, frame.rid, frame.payload, room)
            except RequestRefused as refusal:
                self._refuse(frame.op, frame.rid, refusal.message, refusal.trace)
                continue
            if payload is None:
                self._waiting = frame
                return done, True
            self.push(zcl1.encode(frame.op, frame.rid, payload, zcl1.OK))
        return done, False

    def push(self, frames: bytes) -> None:
        """Adds to what is to be read."""
        self._output += frames

    def _refuse(self, op: int, rid: int, message: str, trace: str = "") -> None:
        self.push(zcl1.encode_error(op, rid, trace or self.capability.trace, message))

    def break_off(self, message: str) -> None:
        """Ends the stream from this side: one error frame that belongs to no request, then nothing more is taken."""
        self._waiting = None
        self._refuse(0, 0, message)
        self.closed = True

    def resume(self) -> bool:
        """Looks again at the request that waits; whether it is answered now."""
        frame = self._waiting
        if frame is None:
            return True
        payload = self.capability.resume(OUTPUT_LIMIT - len(self._output))
        if payload is None:
            return False
        self._waiting = None
        self.push(zcl1.encode(frame.op, frame.rid, payload, zcl1.OK))
        return True

    def peek(self, most: int) -> bytes:
        """The next unread bytes, which stay unread."""
        return bytes(self._output[:most])

    def skip(self, count: int) -> None:
        """Marks bytes as read."""
        del self._output[:count]

    def read(self, most: int) -> bytes | int:
        """Unread bytes across frame borders; AGAIN when there are none, no bytes at all once the stream is closed."""
        if most < 0:
            return Code.BOUNDS
        if not self._output and most and not self.closed:
            return Code.AGAIN
        part = self.peek(most)
        self.skip(len(part))
        return part

    def close(self) -> None:
        """Ends the stream and its capability."""
        self.closed = True
        self._waiting = None
        self._input.clear()
        self._output.clear()
        self.capability.close()
