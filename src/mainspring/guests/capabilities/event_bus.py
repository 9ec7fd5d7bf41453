"""The capability `event/bus@v1`: topics in memory, between the handles of a guest.

A handle subscribes to topics by their exact names and publishes to them. Every matching subscription gets one EVENT
frame, which carries the request id of the PUBLISH; on the publisher's own handle it stands before the answer. An event
reaches all its subscribers or none: when the unread frames of one of them leave no room, the PUBLISH is refused, and
nothing is dropped without a word.

A guest is told to wait in one place only, so this handle can be watched, although there is no descriptor of the system
behind it: an eventfd stands for it, which is readable exactly while something is unread.
"""

from __future__ import annotations

import os

from mainspring.guests.errors import RequestRefused
from mainspring.guests.protocol import zcl1
from mainspring.guests.protocol.stream import OUTPUT_LIMIT, RESERVE, GuestCapability, Stream

SUBSCRIBE, UNSUBSCRIBE, PUBLISH, EVENT = 1, 2, 3, 100
MAX_SUBSCRIPTIONS = 4096  # of one handle


class Hub:
    """Who has subscribed to what, among the handles of one guest."""

    def __init__(self) -> None:
        self._topics: dict[bytes, dict[int, EventStream]] = {}
        self._last_id = 0

    def subscribe(self, topic: bytes, stream: EventStream) -> int:
        self._last_id += 1
        self._topics.setdefault(topic, {})[self._last_id] = stream
        return self._last_id

    def unsubscribe(self, topic: bytes, ident: int) -> None:
        subscribers = self._topics[topic]
        del subscribers[ident]
        if not subscribers:
            del self._topics[topic]

    def publish(self, topic: bytes, data: bytes, rid: int) -> int:
        """To how many subscriptions the event went; refused when it does not fit everywhere."""
        subscribers = {i: stream for i, stream in self._topics.get(topic, {}).items() if not stream.closed}
        size = zcl1.HEADER.size + 3 * zcl1.U32.size + len(topic) + len(data)
        needed: dict[EventStream, int] = {}
        for stream in subscribers.values():
            needed[stream] = needed.get(stream, 0) + size
        if any(stream.unread + total > OUTPUT_LIMIT - RESERVE for stream, total in needed.items()):
            raise RequestRefused("no room at a subscriber", trace="t_event_bus_full")
        for ident, stream in subscribers.items():
            payload = zcl1.U32.pack(ident) + zcl1.text(topic) + zcl1.text(data)
            stream.push(zcl1.encode(EVENT, rid, payload, zcl1.OK))
        return len(subscribers)


class EventBusCapability(GuestCapability):
    """One open `event/bus`."""

    trace = "t_event_bus"

    def __init__(self, hub: Hub, stream: EventStream) -> None:
        self._hub = hub
        self._stream = stream
        self._subscriptions: dict[int, bytes] = {}

    def answer(self, op: int, rid: int, payload: bytes, room: int) -> bytes | None:
        if op == SUBSCRIBE:
            return zcl1.U32.pack(self._subscribe(payload))
        if op == UNSUBSCRIBE:
            return zcl1.U32.pack(self._unsubscribe(payload))
        if op == PUBLISH:
            topic, rest = _taken(payload, "PUBLISH")
            data, rest = _taken(rest, "PUBLISH")
            if rest or not topic:
                raise _malformed("PUBLISH")
            return zcl1.U32.pack(self._hub.publish(topic, data, rid))
        raise RequestRefused("unknown op", trace="t_event_bus_unknown_op")

    def _subscribe(self, payload: bytes) -> int:
        topic, rest = _taken(payload, "SUBSCRIBE")
        if len(rest) != zcl1.U32.size or not topic:
            raise _malformed("SUBSCRIBE")
        if rest != bytes(zcl1.U32.size):
            raise RequestRefused("flags must be 0", trace="t_event_bus_flags")
        if len(self._subscriptions) >= MAX_SUBSCRIPTIONS:
            raise RequestRefused("too many subscriptions", trace="t_event_bus_full")
        ident = self._hub.subscribe(topic, self._stream)
        self._subscriptions[ident] = topic
        return ident

    def _unsubscribe(self, payload: bytes) -> int:
        """1, or 0 when this handle has no such subscription."""
        if len(payload) != zcl1.U32.size:
            raise _malformed("UNSUBSCRIBE")
        ident = zcl1.U32.unpack(payload)[0]
        topic = self._subscriptions.pop(ident, None)
        if topic is None:
            return 0
        self._hub.unsubscribe(topic, ident)
        return 1

    def close(self) -> None:
        for ident, topic in self._subscriptions.items():
            self._hub.unsubscribe(topic, ident)
        self._subscriptions.clear()


class EventStream(Stream):
    """The stream of an `event/bus`: frames come also when nothing was asked, and a loop can watch for them."""

    descriptor: int

    def __init__(self, hub: Hub) -> None:
        super().__init__(EventBusCapability(hub, self))
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def push(self, frames: bytes) -> None:
        if not self.unread:
            os.eventfd_write(self.descriptor, 1)
        super().push(frames)

    def skip(self, count: int) -> None:
        before = self.unread
        super().skip(count)
        if before and not self.unread:
            os.eventfd_read(self.descriptor)

    def close(self) -> None:
        super().close()
        os.close(self.descriptor)


def _taken(payload: bytes, op: str) -> tuple[bytes, bytes]:
    """The length-prefixed bytes a payload begins with, and the rest."""
    end = zcl1.U32.size + int.from_bytes(payload[: zcl1.U32.size], "little")
    if len(payload) < max(end, zcl1.U32.size):
        raise _malformed(op)
    return payload[zcl1.U32.size : end], payload[end:]


def _malformed(op: str) -> RequestRefused:
    return RequestRefused(f"bad {op} payload", trace="t_event_bus_malformed")
