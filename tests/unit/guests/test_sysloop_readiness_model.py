"""Readiness against a model that asks poll(2) about every watch: random watches, data, hangups and ends.

The epoll set underneath is edge-triggered; what it must never do is forget something that is still true, or report
something that is not. Both would show here as a difference to the plain question "what is true right now?".
"""

from __future__ import annotations

import os
import random
import select
import socket
from typing import Any

import pytest

from mainspring.guests import Guest
from tests.support.guests import READY, Host, Loop, unwatch, watch

BITS = ((select.POLLIN, 1), (select.POLLOUT, 2), (select.POLLHUP | select.POLLRDHUP, 4), (select.POLLERR, 8))
QUESTION = select.POLLIN | select.POLLOUT | select.POLLRDHUP


class Pair:
    """A handle of the guest, our copy of what it stands for, and its other end."""

    def __init__(self, guest: Guest, host: Host, chance: random.Random) -> None:
        kind = chance.choice(["pipe read", "pipe write", "unix", "tcp", "file"])
        self.ours: Any
        self.peer: Any
        if kind == "file":
            self.ours, self.peer = host.file(), None
        elif kind == "unix":
            self.ours, self.peer = host.unix_pair()
        elif kind == "tcp":
            self.ours, self.peer = host.tcp_pair()
        else:
            reader, writer = host.pipe()
            self.ours, self.peer = (reader, writer) if kind == "pipe read" else (writer, reader)
        if self.peer is not None:
            os.set_blocking(self.peer.fileno(), False)
        self.handle = guest.attach(self.ours)

    def truth(self) -> int:
        question = select.poll()
        question.register(self.ours.fileno(), QUESTION)
        mask = dict(question.poll(0)).get(self.ours.fileno(), 0)
        return sum(bit for kernel, bit in BITS if mask & kernel)

    def disturb(self, chance: random.Random) -> None:
        """Something happens at one of the two ends."""
        try:
            match chance.randrange(6):
                case 0 | 1 if self.peer is not None:
                    os.write(self.peer.fileno(), b"x" * chance.choice([1, 70_000]))
                case 2 if self.peer is not None:
                    os.read(self.peer.fileno(), 1 << 20)
                case 3:
                    os.read(self.ours.fileno(), chance.choice([1, 1 << 20]))
                case 4:
                    os.write(self.ours.fileno(), b"y" * chance.choice([1, 1 << 20]))
                case 5 if self.peer is not None and chance.random() < 0.2:
                    if isinstance(self.peer, socket.socket) and chance.random() < 0.5:
                        self.peer.shutdown(socket.SHUT_WR)
                    else:
                        self.peer.close()
                        self.peer = None
        except OSError:
            pass  # nothing there, no room, wrong direction, gone: all of it happens


@pytest.mark.parametrize("seed", range(12))
def test_every_poll_tells_exactly_what_is_true(guest: Guest, host: Host, seed: int) -> None:
    chance = random.Random(seed)
    loops = [Loop(guest), Loop(guest)]
    watches: list[dict[int, tuple[Pair, int]]] = [{}, {}]
    pairs = [Pair(guest, host, chance) for _ in range(6)]
    for _ in range(400):
        number = chance.randrange(2)
        loop, known = loops[number], watches[number]
        step = chance.random()
        if step < 0.15:
            pair, events, ident = chance.choice(pairs), chance.randrange(1, 16), chance.randrange(1, 12)
            status = loop.ask(watch(pair.handle, events, ident)).status
            assert status == (ident not in known)
            known.setdefault(ident, (pair, events))
        elif step < 0.25:
            ident = chance.randrange(1, 12)
            assert loop.ask(unwatch(ident)).status == (known.pop(ident, None) is not None)
        elif step < 0.28:
            gone = pairs.pop(chance.randrange(len(pairs)))
            guest.end(gone.handle)
            for table in watches:
                for ident in [ident for ident, (pair, _) in table.items() if pair is gone]:
                    del table[ident]
            pairs.append(Pair(guest, host, chance))
        elif step < 0.7:
            chance.choice(pairs).disturb(chance)
        else:
            most = chance.choice([1, 2, 64])
            truth = {pair.handle: pair.truth() for pair in pairs}
            expected = {
                (READY, truth[pair.handle] & events, pair.handle, ident)
                for ident, (pair, events) in known.items()
                if truth[pair.handle] & events
            }
            answer = loop.poll(most)
            assert set(answer.events) <= expected
            assert len(set(answer.events)) == len(answer.events) == min(most, len(expected))
            assert answer.more == (len(expected) > most)
