"""event/bus: topics between the handles of a guest, with a loop that waits for them."""

from __future__ import annotations

import struct

import pytest

from mainspring.guests import Guest
from tests.support.guests import (
    AGAIN,
    FOREVER,
    READABLE,
    READY,
    WRITABLE,
    Answer,
    Host,
    Loop,
    answers,
    frame,
    nothing_left_behind,
)

SUBSCRIBE, UNSUBSCRIBE, PUBLISH, EVENT = 1, 2, 3, 100


def text(content: bytes) -> bytes:
    return struct.pack("<I", len(content)) + content


def subscribe(topic: bytes, rid: int = 1) -> bytes:
    return frame(SUBSCRIBE, text(topic) + bytes(4), rid=rid)


def publish(topic: bytes, data: bytes, rid: int = 2) -> bytes:
    return frame(PUBLISH, text(topic) + text(data), rid=rid)


def number(value: int) -> bytes:
    return struct.pack("<I", value)


class Bus:
    """One event/bus handle."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self.handle = guest.open("event", "bus")

    def send(self, data: bytes) -> None:
        assert self.guest.write(self.handle, data) == len(data)

    def receive(self) -> list[Answer]:
        got = self.guest.read(self.handle, 1 << 20)
        return [] if isinstance(got, int) else answers(got)

    def ask(self, data: bytes) -> Answer:
        self.send(data)
        (answer,) = self.receive()
        return answer


def test_every_subscription_gets_an_event_with_the_rid_of_its_publish(guest: Guest) -> None:
    one, other = Bus(guest), Bus(guest)
    assert one.ask(subscribe(b"a")).payload == number(1)
    assert other.ask(subscribe(b"a")).payload == number(2)
    assert other.ask(subscribe(b"a")).payload == number(3)
    assert other.ask(subscribe(b"ab")).payload == number(4), "topics match exactly"
    one.send(publish(b"a", b"hi", rid=77))
    event = text(b"a") + text(b"hi")
    assert one.receive() == [Answer(EVENT, 77, 1, number(1) + event), Answer(PUBLISH, 77, 1, number(3))]
    assert other.receive() == [Answer(EVENT, 77, 1, number(ident) + event) for ident in (2, 3)]


def test_nobody_gets_what_he_gave_up(guest: Guest) -> None:
    one, other = Bus(guest), Bus(guest)
    one.ask(subscribe(b"a"))
    other.ask(subscribe(b"a"))
    assert other.ask(frame(UNSUBSCRIBE, number(1))).payload == number(0), "somebody else's"
    assert one.ask(frame(UNSUBSCRIBE, number(1))).payload == number(1)
    assert one.ask(frame(UNSUBSCRIBE, number(1))).payload == number(0)
    assert one.ask(publish(b"a", b"")).payload == number(1)
    guest.end(other.handle)
    assert one.ask(publish(b"a", b"")).payload == number(0)


def test_a_loop_waits_for_an_event(guest: Guest) -> None:
    loop, bus, publisher = Loop(guest), Bus(guest), Bus(guest)
    bus.ask(subscribe(b"a"))
    loop.watch(bus.handle, READABLE, 5)
    assert loop.poll(8).events == []
    for _ in range(3):
        publisher.ask(publish(b"a", b"x"))
        assert loop.poll(8, FOREVER).events == [(READY, READABLE, bus.handle, 5)]
        assert len(guest.read(bus.handle, 5)) == 5  # type: ignore[arg-type]
        assert loop.poll(8, FOREVER).events == [(READY, READABLE, bus.handle, 5)], "half of a frame is left"
        assert len(guest.read(bus.handle, 1 << 20)) > 0  # type: ignore[arg-type]
        assert guest.read(bus.handle, 1) == AGAIN
        assert loop.poll(8).events == []
    loop.watch(bus.handle, WRITABLE, 6)
    assert loop.poll(8, FOREVER).events == [(READY, WRITABLE, bus.handle, 6)]
    guest.end(bus.handle)
    assert loop.poll(8).events == []


def test_an_event_reaches_all_or_none_and_is_never_dropped(guest: Guest) -> None:
    slow, quick, publisher = Bus(guest), Bus(guest), Bus(guest)
    slow.ask(subscribe(b"a"))
    quick.ask(subscribe(b"a"))
    sent = 0
    while (answer := publisher.ask(publish(b"a", bytes(5000), rid=sent))).status == 1:
        sent += 1
        assert len(quick.receive()) == 1
    assert (answer.error, quick.receive()) == ("no room at a subscriber", [])
    assert [event.rid for event in slow.receive()] == list(range(sent))
    assert publisher.ask(publish(b"a", b"")).payload == number(2), "there is room again"
    assert publisher.ask(publish(b"a", bytes(65_400))).status == 0, "larger than what anybody can have unread"


def test_a_stream_that_broke_holds_no_publisher_up(guest: Guest) -> None:
    broken, publisher = Bus(guest), Bus(guest)
    broken.ask(subscribe(b"a"))
    assert broken.ask(b"junk").error == "bad magic"
    assert publisher.ask(publish(b"a", b"x")).payload == number(0)


@pytest.mark.parametrize(
    "request_frame",
    [
        frame(SUBSCRIBE),
        frame(SUBSCRIBE, bytes(8)),
        frame(SUBSCRIBE, text(b"a")),
        frame(SUBSCRIBE, text(b"a") + bytes(5)),
        frame(SUBSCRIBE, number(2**32 - 1) + bytes(8)),
        frame(UNSUBSCRIBE),
        frame(UNSUBSCRIBE, bytes(8)),
        frame(PUBLISH, text(b"a")),
        frame(PUBLISH, text(b"a") + text(b"x") + b"y"),
        frame(PUBLISH, text(b"a") + number(2) + b"x"),
        frame(PUBLISH, text(b"") + text(b"x")),
    ],
    ids=lambda request_frame: request_frame[24:].hex() or "empty",
)
def test_malformed_requests_are_refused_and_the_stream_goes_on(guest: Guest, request_frame: bytes) -> None:
    bus = Bus(guest)
    refusal = bus.ask(request_frame)
    assert refusal.status == 0
    assert str(refusal.error).endswith("payload")
    assert bus.ask(subscribe(b"a")).payload == number(1)


def test_subscriptions_of_a_handle_are_bounded(guest: Guest) -> None:
    bus = Bus(guest)
    for _ in range(4096):
        bus.ask(subscribe(b"a"))
    assert bus.ask(subscribe(b"a")).error == "too many subscriptions"


def test_nothing_of_it_is_left_when_the_guest_ends(host: Host) -> None:
    with nothing_left_behind(), Guest() as guest:
        loop = Loop(guest)
        for ident in range(1, 20):
            bus = Bus(guest)
            bus.ask(subscribe(b"a"))
            loop.watch(bus.handle, READABLE, ident)
