"""When a client connects again: the machine alone, without sockets and without time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mainspring.client.connection import ConnectionState, Reconnect


def waits(machine: Reconnect, count: int) -> list[int]:
    found = []
    for _ in range(count):
        found.append(machine.lost())
        machine.waited()
    return found


def test_the_first_wait_is_the_base_and_each_next_one_doubles_up_to_the_cap() -> None:
    assert waits(Reconnect(lambda: 0.0), 8) == [500, 1000, 2000, 4000, 8000, 10000, 10000, 10000]


def test_a_connection_that_opened_starts_the_series_anew() -> None:
    machine = Reconnect(lambda: 0.0)
    waits(machine, 5)
    machine.opened()
    assert machine.state is ConnectionState.OPEN
    assert waits(machine, 2) == [500, 1000]


def test_jitter_shortens_each_wait_by_at_most_half() -> None:
    assert waits(Reconnect(lambda: 0.999999), 3) == [250, 500, 1000]


@given(st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=60))
def test_a_wait_is_never_longer_than_the_cap_and_never_shorter_than_half_the_base(chances: list[float]) -> None:
    following = iter(chances)
    for wait in waits(Reconnect(lambda: next(following)), len(chances)):
        assert 250 <= wait <= 10_000


def test_a_closed_machine_stays_closed() -> None:
    machine = Reconnect(lambda: 0.0)
    machine.lost()
    machine.close()
    machine.waited()
    assert machine.state is ConnectionState.CLOSED
    assert machine.lost() == 0
    machine.opened()
    assert machine.state is ConnectionState.CLOSED


def test_states_follow_each_other() -> None:
    machine = Reconnect(lambda: 0.0)
    seen = [machine.state]
    machine.opened()
    seen.append(machine.state)
    machine.lost()
    seen.append(machine.state)
    machine.waited()
    seen.append(machine.state)
    assert seen == [
        ConnectionState.CONNECTING,
        ConnectionState.OPEN,
        ConnectionState.WAITING,
        ConnectionState.CONNECTING,
    ]
