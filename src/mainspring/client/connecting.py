"""`connect`: where a client gets its clock, its randomness, its ids and its address."""

from __future__ import annotations

import os
import random as random_module
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import uuid_utils

from mainspring.client.client import Client
from mainspring.client.connection import Options
from mainspring.client.errors import BadArgument
from mainspring.client.websocket import RandomBytes
from mainspring.loop import Clock, MonotonicClock
from mainspring.settings import Settings, load


def connect(
    url: str | None = None,
    token: str | None = None,
    *,
    clock: Clock | None = None,
    random: Callable[[], float] = random_module.random,
    new_id: Callable[[], str] = lambda: str(uuid_utils.uuid7()),
    random_bytes: RandomBytes = os.urandom,
    **options: Any,
) -> Client:
    """A client of the node at `url` (`BUS_URL`, or ws://127.0.0.1:7070). Use it with `async with`.

    `url` may name several nodes of one log, separated by commas. The client begins with one of them at random and goes
    to the next whenever it cannot connect or loses the connection; nothing it was promised depends on which.

    `options` are those of `Options`: timeouts, limits, callbacks. Entering waits for the first connection and raises
    CannotConnect when there is none within `connect_timeout`; afterwards the client reconnects by itself, for ever.
    """
    return Client(
        checked_urls(url),
        token,
        Options(**options),
        clock=clock or MonotonicClock(),
        random=random,
        new_id=new_id,
        random_bytes=random_bytes,
    )


def checked_urls(urls: str | None) -> tuple[str, ...]:
    """The WebSocket addresses; http:// is understood. Raises BadArgument for anything else."""
    if urls is None:
        given = os.environ.get("BUS_URL")
        urls = load(environ={"BUS_URL": given}).settings.bus_url if given else Settings().bus_url
    return tuple(_checked_url(url.strip()) for url in urls.split(","))


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        scheme = {"ws": "ws", "wss": "wss", "http": "ws", "https": "wss"}.get(parts.scheme)
        is_address = scheme is not None and parts.hostname and parts.port != 0
    except ValueError:  # brackets that do not close, a port that is none
        is_address = False
    if not is_address:
        raise BadArgument(f"{url!r} is no address of a node", remedy="write ws://host:port or wss://host:port")
    return parts._replace(scheme=str(scheme)).geturl()
