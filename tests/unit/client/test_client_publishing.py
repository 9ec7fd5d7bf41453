"""Outgoing events without a socket: batches, order, what happens when a connection or the node says no."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mainspring.client.errors import ClientError, Closed, NodeRefused, Uncertain
from mainspring.client.frames import ErrorFrame, encode_event
from mainspring.client.publishing import UNDER_WAY, Outgoing, Publishing
from mainspring.loop import VirtualClock

WINDOW_MS = 600_000


class Told(Outgoing):
    """An event that remembers what became of it."""

    def __init__(self, id: str, payload: Any = 0, expect: int | None = None) -> None:
        super().__init__(id, encode_event(id, payload, None, None), expect)
        self.outcome: Any = None
        self.given_up = False

    def placed(self, partition: int, offset: int) -> None:
        assert self.outcome is None, "decided twice"
        self.outcome = (partition, offset)

    def failed(self, error: ClientError) -> None:
        assert self.outcome is None, "decided twice"
        self.outcome = error

    @property
    def abandoned(self) -> bool:
        return self.given_up


class World:
    """Publishing with a clock, and a node that keeps what it is sent."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.frames: list[dict[str, Any]] = []
        self._corr = 0
        self.publishing = Publishing(
            self.clock.now_ms,
            self._new_corr,
            lambda frame: self.frames.append(json.loads(frame)),
            dedupe_window_ms=WINDOW_MS,
        )

    def _new_corr(self) -> int:
        self._corr += 1
        return self._corr

    def put(self, *events: Told, topic: str = "t") -> None:
        for event in events:
            self.publishing.put(topic, event)
        self.publishing.flush()

    def ids(self) -> list[list[str]]:
        return [[event["id"] for event in frame.get("events", [frame])] for frame in self.frames]

    def store(self, at: int = -1, first: int = 1) -> None:
        frame = self.frames[at]
        self.publishing.stored(frame["corr"], [(0, first + n) for n in range(len(frame.get("events", [0])))])
        self.publishing.flush()

    def refuse(self, code: str, at: int = -1) -> None:
        self.publishing.refused(self.frames[at]["corr"], ErrorFrame(code, "no"))
        self.publishing.flush()


def test_events_put_together_leave_together() -> None:
    world = World()
    world.publishing.opened()
    for id in "abc":
        world.publishing.put("t", Told(id))
    world.publishing.flush()
    assert world.ids() == [["a", "b", "c"]]


def test_what_comes_while_many_batches_are_under_way_leaves_with_the_next_answer() -> None:
    world = World()
    world.publishing.opened()
    events = [Told(str(n)) for n in range(UNDER_WAY + 3)]
    for event in events:
        world.put(event)
    assert world.ids() == [[str(n)] for n in range(UNDER_WAY)]
    world.store(0)
    assert world.ids()[UNDER_WAY:] == [[str(UNDER_WAY + n) for n in range(3)]]
    for n in range(1, UNDER_WAY + 1):
        world.store(n, n + 1)
    assert [event.outcome for event in events] == [(0, n) for n in range(1, UNDER_WAY + 4)]
    assert world.publishing.count == 0
    assert world.publishing.bytes == 0


def test_topics_do_not_wait_for_each_other() -> None:
    world = World()
    world.publishing.opened()
    for n in range(UNDER_WAY + 5):
        world.put(Told(str(n)), topic="slow")
    world.put(Told("c"), topic="quick")
    assert len(world.ids()) == UNDER_WAY + 1
    assert world.ids()[-1] == ["c"]


def test_nothing_is_sent_before_a_connection_opens() -> None:
    world = World()
    world.put(Told("a"))
    assert world.frames == []
    world.publishing.opened()
    assert world.ids() == [["a"]]


def test_what_was_under_way_is_sent_again_with_its_ids_and_in_order() -> None:
    world = World()
    world.publishing.opened()
    for id in "abcd":
        world.put(Told(id))
    world.publishing.lost()
    world.frames.clear()
    world.publishing.opened()
    assert [id for batch in world.ids() for id in batch] == list("abcd")


def test_an_answer_of_an_older_connection_is_not_taken_for_one_of_the_new() -> None:
    world = World()
    world.publishing.opened()
    event = Told("a")
    world.put(event)
    old = world.frames[0]["corr"]
    world.publishing.lost()
    world.publishing.opened()
    assert not world.publishing.stored(old, [(0, 7)])
    assert event.outcome is None


def test_an_event_sent_longer_ago_than_ids_are_remembered_is_in_doubt_and_not_sent_again() -> None:
    world = World()
    world.publishing.opened()
    sent, waiting = Told("sent"), Told("waiting")
    world.put(sent)
    world.publishing.lost()
    world.put(waiting)
    world.clock.advance(WINDOW_MS + 1)
    world.frames.clear()
    world.publishing.opened()
    assert isinstance(sent.outcome, Uncertain)
    assert sent.outcome.id == "sent"
    assert world.ids() == [["waiting"]]  # never sent before, so it cannot be doubled


def test_an_event_is_sent_again_while_its_id_is_remembered() -> None:
    world = World()
    world.publishing.opened()
    world.put(Told("a"))
    world.publishing.lost()
    world.clock.advance(WINDOW_MS)
    world.frames.clear()
    world.publishing.opened()
    assert world.ids() == [["a"]]


def test_a_refused_batch_is_sent_one_by_one_so_that_only_the_guilty_fails() -> None:
    world = World()
    world.publishing.opened()
    good, bad, last = Told("good"), Told("bad"), Told("last")
    for event in (good, bad, last):
        world.publishing.put("t", event)
    world.publishing.flush()
    world.refuse("schema_mismatch")
    assert world.ids()[1:] == [["good"], ["bad"], ["last"]]
    world.store(1)
    world.refuse("schema_mismatch", 2)
    world.store(3, 2)
    assert good.outcome == (0, 1)
    assert isinstance(bad.outcome, NodeRefused)
    assert bad.outcome.code == "schema_mismatch"
    assert last.outcome == (0, 2)


def test_a_forbidden_topic_fails_the_whole_batch_at_once() -> None:
    world = World()
    world.publishing.opened()
    events = [Told(id) for id in "abc"]
    for event in events:
        world.publishing.put("t", event)
    world.publishing.flush()
    world.refuse("forbidden")
    assert [event.outcome.code for event in events] == ["forbidden"] * 3
    assert len(world.frames) == 1


def test_a_node_that_cannot_store_now_is_asked_again_later_and_later() -> None:
    world = World()
    world.publishing.opened()
    event = Told("a")
    world.put(event)
    waits = []
    for _ in range(8):
        world.refuse("unavailable")
        waits.append(world.publishing.wake_ms() - world.clock.now_ms())
        world.clock.advance(waits[-1])
        world.publishing.flush()
    assert waits == [100, 200, 400, 800, 1600, 3200, 5000, 5000]
    world.store()
    assert event.outcome == (0, 1)


def test_a_full_node_does_not_hold_up_other_topics() -> None:
    world = World()
    world.publishing.opened()
    world.put(Told("a"), topic="full")
    world.refuse("unavailable")
    world.put(Told("b"), topic="fine")
    assert world.ids() == [["a"], ["b"]]


def test_a_frame_the_node_could_not_read_is_cut_in_half_until_it_fits() -> None:
    world = World()
    world.publishing.opened()
    events = [Told(str(n), "x" * 100) for n in range(4)]
    for event in events:
        world.publishing.put("t", event)
    world.publishing.flush()
    assert world.publishing.too_large()
    world.publishing.flush()
    assert world.ids()[1:] == [["0", "1"], ["2", "3"]]
    assert world.publishing.too_large()
    world.publishing.flush()
    assert world.ids()[3:] == [["0"], ["1"]]
    for frame in world.frames[2:]:
        world.publishing.stored(frame["corr"], [(0, 1)] * len(frame["events"]))
    assert all(event.outcome == (0, 1) for event in events)


def test_one_event_too_large_for_the_node_fails() -> None:
    world = World()
    world.publishing.opened()
    event = Told("a", "x" * 1000)
    world.put(event)
    world.publishing.too_large()
    assert event.outcome.code == "too_large"


def test_an_expectation_travels_alone() -> None:
    world = World()
    world.publishing.opened()
    for event in (Told("a"), Told("b", expect=1), Told("c")):
        world.publishing.put("t", event)
    world.publishing.flush()
    world.store(0)
    assert world.ids() == [["a"], ["b"], ["c"]]
    assert world.frames[1]["expect"] == 1
    assert world.frames[1]["type"] == "PUBLISH"


def test_who_gave_up_before_it_was_sent_is_not_sent() -> None:
    world = World()
    event = Told("a")
    world.put(event, Told("b"))
    event.given_up = True
    world.publishing.opened()
    assert world.ids() == [["b"]]
    assert world.publishing.count == 1


def test_the_end_fails_everything_that_is_left() -> None:
    world = World()
    world.publishing.opened()
    events = [Told(id) for id in "abcd"]
    for event in events:
        world.put(event)
    world.publishing.fail_all(Closed("over"))
    assert all(isinstance(event.outcome, Closed) for event in events)
    assert world.publishing.count == 0


@given(st.data())
def test_whatever_connections_do_the_node_stores_each_event_once_and_in_order(data: st.DataObject) -> None:
    """The node here keeps what it stored by id, as the real one does, and may die before it answers."""
    world = World()
    stored: list[str] = []
    events: list[Told] = []
    connected = False
    answered = 0
    for _ in range(data.draw(st.integers(5, 60))):
        step = data.draw(st.sampled_from(["put", "put", "open", "lose", "answer", "answer", "store and lose"]))
        if step == "put":
            events.append(Told(f"e{len(events)}"))
            world.put(events[-1])
        elif step == "open" and not connected:
            connected = True
            answered = len(world.frames)
            world.publishing.opened()
        elif step == "lose" and connected:
            connected = False
            world.publishing.lost()
        elif connected and answered < len(world.frames):
            frame = world.frames[answered]
            answered += 1
            stored += [event["id"] for event in frame["events"] if event["id"] not in stored]
            if step == "answer":
                places = [(0, stored.index(event["id"]) + 1) for event in frame["events"]]
                world.publishing.stored(frame["corr"], places)
                world.publishing.flush()
            else:
                connected = False
                world.publishing.lost()
    assert stored == [event.id for event in events][: len(stored)]
    for event in events:
        if event.outcome is not None:
            assert event.outcome == (0, stored.index(event.id) + 1)


def own(id: str) -> Told:
    """An event whose id nobody else knows."""
    event = Told(id)
    event.own_id = False
    return event


def test_a_batch_has_the_id_of_its_first_event_and_is_sent_again_as_it_was() -> None:
    world = World()
    world.publishing.opened()
    for event in (own("a"), own("b"), Told("x"), Told("y"), own("c")):
        world.publishing.put("t", event)
    world.publishing.flush()
    sent = [(frame.get("batch_id"), ids) for frame, ids in zip(world.frames, world.ids(), strict=True)]
    assert sent == [("a", ["a", "b"]), (None, ["x", "y"]), (None, ["c"])]
    world.publishing.lost()
    world.put(own("d"), own("e"))
    world.frames.clear()
    world.publishing.opened()
    again = [(frame.get("batch_id"), ids) for frame, ids in zip(world.frames, world.ids(), strict=True)]
    assert again == [*sent, ("d", ["d", "e"])]


def test_a_batch_that_may_be_stored_is_not_taken_apart() -> None:
    world = World()
    world.publishing.opened()
    events = [own("a"), own("b")]
    for event in events:
        world.publishing.put("t", event)
    world.publishing.flush()
    world.publishing.lost()
    world.publishing.opened()
    world.refuse("schema_mismatch")
    assert [type(event.outcome) for event in events] == [Uncertain, Uncertain]
    assert world.publishing.count == 0


def test_a_batch_that_is_certainly_not_stored_is_sent_event_by_event() -> None:
    world = World()
    world.publishing.opened()
    for id in "ab":
        world.publishing.put("t", own(id))
    world.publishing.flush()
    world.refuse("schema_mismatch")
    assert world.ids()[1:] == [["a"], ["b"]]
    assert "batch_id" not in world.frames[1]


def test_a_node_that_could_not_store_a_batch_gets_the_same_one_again() -> None:
    world = World()
    world.publishing.opened()
    for id in "ab":
        world.publishing.put("t", own(id))
    world.publishing.flush()
    world.refuse("unavailable")
    world.put(own("c"))
    world.clock.advance(world.publishing.wake_ms() - world.clock.now_ms())
    world.publishing.flush()
    assert world.ids() == [["a", "b"], ["a", "b"], ["c"]]
    assert [frame.get("batch_id") for frame in world.frames] == ["a", "a", None]


def test_a_batch_sent_longer_ago_than_it_is_remembered_is_in_doubt() -> None:
    world = World()
    world.publishing.opened()
    events = [own("a"), own("b")]
    for event in events:
        world.publishing.put("t", event)
    world.publishing.flush()
    world.publishing.lost()
    world.clock.advance(WINDOW_MS + 1)
    world.frames.clear()
    world.publishing.opened()
    assert world.frames == []
    assert [type(event.outcome) for event in events] == [Uncertain, Uncertain]


@given(st.data())
def test_batches_with_ids_are_stored_once_and_in_order_whatever_connections_do(data: st.DataObject) -> None:
    """The node here remembers batches by their id alone, and events only where the batch has none."""
    world = World()
    stored: list[str] = []
    batches: dict[str, list[str]] = {}
    events: list[Told] = []
    connected = False
    answered = 0
    for _ in range(data.draw(st.integers(5, 60))):
        steps = ["put", "put", "put some", "open", "lose", "answer", "answer", "store and lose", "full"]
        step = data.draw(st.sampled_from(steps))
        if step in ("put", "put some"):
            for _ in range(1 if step == "put" else data.draw(st.integers(2, 5))):
                event = Told(f"e{len(events)}")
                event.own_id = data.draw(st.booleans())
                events.append(event)
                world.publishing.put("t", event)
            world.publishing.flush()
        elif step == "open" and not connected:
            connected = True
            answered = len(world.frames)
            world.publishing.opened()
        elif step == "lose" and connected:
            connected = False
            world.publishing.lost()
        elif connected and answered < len(world.frames):
            frame = world.frames[answered]
            answered += 1
            ids = [event["id"] for event in frame["events"]]
            if step == "full" and answered == len(world.frames):  # with more behind it, it would be overtaken
                world.refuse("unavailable", answered - 1)
                world.clock.advance(max(0, world.publishing.wake_ms() - world.clock.now_ms()))
                world.publishing.flush()
                continue
            if "batch_id" not in frame:
                stored += [id for id in ids if id not in stored]
            elif frame["batch_id"] not in batches:
                batches[frame["batch_id"]] = ids
                stored += ids
            else:
                assert batches[frame["batch_id"]] == ids
            if step == "store and lose":
                connected = False
                world.publishing.lost()
            else:
                world.publishing.stored(frame["corr"], [(0, stored.index(id) + 1) for id in ids])
                world.publishing.flush()
    assert stored == [event.id for event in events][: len(stored)]
    for event in events:
        if event.outcome is not None:
            assert event.outcome == (0, stored.index(event.id) + 1)
