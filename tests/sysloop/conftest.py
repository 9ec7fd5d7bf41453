"""Guests, their loops and the host around them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sysloop_world import Host, Loop

from mainspring.guests import Guest


@pytest.fixture
def host() -> Iterator[Host]:
    made = Host()
    yield made
    made.close()


@pytest.fixture
def guest() -> Iterator[Guest]:
    with Guest() as made:
        yield made


@pytest.fixture
def loop(guest: Guest) -> Loop:
    return Loop(guest)
