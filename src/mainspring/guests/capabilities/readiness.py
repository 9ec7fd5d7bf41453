"""Which watches are ready, at a cost that follows the ready ones and not the idle ones.

Every watched descriptor is registered once with epoll, edge-triggered, for the union of what its watches ask for. An
edge makes those watches *candidates*. Before a candidate is reported, poll(2) asks the kernel whether it is true right
now; if it is not, the candidate is dropped until the next edge. Reported ones go to the end of the line, which is both
the level-triggered promise (still true: reported again) and the fairness promise (the others come first).

Level-triggered epoll looks simpler and was left out for two reasons. It always reports hangup and error, asked for or
not, so a watch for readable on a dead pipe would wake the loop for ever; as an edge this is one wake-up. And to set the
more-flag truthfully one has to look one entry further than is reported, which would send that entry to the back of the
kernel's own queue unreported: with single-event polls every second descriptor would starve.

A new watch starts as a candidate, so a condition that is already true needs no edge. That also covers regular files,
which epoll refuses and poll(2) calls always ready: they stay candidates for ever.
"""

from __future__ import annotations

import errno
import select
from collections import OrderedDict
from itertools import islice

from mainspring.guests.errors import NeedsLinux
from mainspring.guests.protocol.operations import Readiness

# The kernel's numbers, the same for epoll and poll(2). Written out, so that other systems can import this module.
_IN, _OUT, _ERR, _HUP, _RDHUP, _EDGES = 0x1, 0x4, 0x8, 0x10, 0x2000, 1 << 31
_KERNEL_BITS = {
    int(Readiness.READABLE): _IN,
    int(Readiness.WRITABLE): _OUT,
    int(Readiness.HUP): _HUP | _RDHUP,  # an orderly close by the peer is a hangup too
    int(Readiness.ERROR): _ERR,
}
_ALL = 0xF
_EDGES_AT_ONCE = 1024


def require_epoll() -> None:
    """Raises `NeedsLinux` where descriptors cannot be waited for."""
    if not hasattr(select, "epoll"):
        raise NeedsLinux("sys/loop needs epoll", remedy="run guests and the loop socket on Linux")


def _from_kernel(mask: int) -> int:
    found = 0
    if mask & _IN:
        found = 0x1
    if mask & _OUT:
        found |= 0x2
    if mask & (_HUP | _RDHUP):
        found |= 0x4
    if mask & _ERR:
        found |= 0x8
    return found


class _Source:
    """One watched descriptor of one loop, with everything that watches it."""

    __slots__ = ("asked", "descriptor", "registered", "votes", "watches")

    def __init__(self, descriptor: int) -> None:
        self.descriptor: int = descriptor
        self.watches: dict[int, Watch] = {}
        self.votes: dict[int, int] = dict.fromkeys(_KERNEL_BITS, 0)  # how many watches ask for each bit
        self.asked: int = 0  # what epoll and poll(2) are asked for
        self.registered: bool = False  # epoll takes it

    def vote(self, events: int, step: int) -> int:
        """Counts a watch in or out; gives the kernel's mask for the union of what is left."""
        mask = 0
        for bit, kernel_bits in _KERNEL_BITS.items():
            if events & bit:
                self.votes[bit] += step
            if self.votes[bit]:
                mask |= kernel_bits
        return mask


class Watch:
    """Interest of a guest in one handle."""

    __slots__ = ("events", "handle", "id", "source")

    def __init__(self, ident: int, handle: int, events: int, source: _Source) -> None:
        self.id: int = ident
        self.handle: int = handle
        self.events: int = events
        self.source: _Source = source


class ReadySet:
    """The watches of one loop, and which of them are ready."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._sources: dict[int, _Source] = {}  # by descriptor
        self._watches: dict[int, Watch] = {}
        self._candidates: OrderedDict[int, Watch] = OrderedDict()

    def __len__(self) -> int:
        return len(self._watches)

    def __contains__(self, ident: int) -> bool:
        return ident in self._watches

    def fileno(self) -> int:
        """Becomes readable when `refresh` has something to learn."""
        return self._epoll.fileno()

    def add(self, ident: int, handle: int, descriptor: int, events: int) -> None:
        """Watches a descriptor. Raises OSError when the kernel cannot; the set is then as it was."""
        events &= _ALL  # unknown bits are accepted and mean nothing
        source = self._sources.get(descriptor) or _Source(descriptor)
        try:
            self._ask(source, source.vote(events, +1))
        except OSError:
            source.vote(events, -1)
            raise
        self._sources[descriptor] = source
        watch = Watch(ident, handle, events, source)
        source.watches[ident] = self._watches[ident] = self._candidates[ident] = watch

    def remove(self, ident: int) -> bool:
        """Whether there was such a watch."""
        watch = self._watches.pop(ident, None)
        if watch is None:
            return False
        self._candidates.pop(ident, None)
        source = watch.source
        del source.watches[ident]
        asked = source.vote(watch.events, -1)
        if source.watches:
            self._ask(source, asked)
        else:
            self._drop(source)
        return True

    def forget(self, descriptor: int) -> None:
        """Removes every watch of a descriptor that is about to be closed."""
        source = self._sources.get(descriptor)
        if source is not None:
            for ident in source.watches:
                del self._watches[ident]
                self._candidates.pop(ident, None)
            self._drop(source)

    def refresh(self) -> None:
        """Takes the edges the kernel has collected."""
        if not self._sources:
            return
        while True:
            edges = self._epoll.poll(0, _EDGES_AT_ONCE)
            for descriptor, mask in edges:
                source = self._sources.get(descriptor)
                if source is not None:
                    bits = _from_kernel(mask)
                    for ident, watch in source.watches.items():
                        if watch.events & bits:
                            self._candidates[ident] = watch
            if len(edges) < _EDGES_AT_ONCE:
                return

    def take(self, most: int) -> tuple[list[tuple[Watch, int]], bool]:
        """Up to `most` ready watches with their bits, in turn; and whether another one is ready as well."""
        line, found = self._candidates, list[tuple[Watch, int]]()
        unseen, step = len(line), most + 1
        while unseen:
            batch = list(islice(line.values(), min(step, unseen)))
            now = _ask_kernel(list({watch.source for watch in batch}))
            for watch in batch:
                bits = now.get(watch.source.descriptor, 0) & watch.events
                if not bits:
                    del line[watch.id]
                elif len(found) < most:
                    line.move_to_end(watch.id)
                    found.append((watch, bits))
                else:
                    return found, True
            unseen -= len(batch)
            step *= 2
        return found, False

    def close(self) -> None:
        """Gives the kernel's side back. The descriptors belong to the handle table."""
        self._epoll.close()
        self._sources.clear()
        self._watches.clear()
        self._candidates.clear()

    def _ask(self, source: _Source, asked: int) -> None:
        if source.registered:
            if asked != source.asked:
                self._epoll.modify(source.descriptor, asked | _EDGES)
        elif not source.watches:
            try:
                self._epoll.register(source.descriptor, asked | _EDGES)
                source.registered = True
            except PermissionError:
                pass  # a regular file or the like: always ready, as poll(2) will say
        source.asked = asked

    def _drop(self, source: _Source) -> None:
        if source.registered:
            # Closing would not be enough: epoll keeps an entry while any copy of the descriptor is open.
            self._epoll.unregister(source.descriptor)
        del self._sources[source.descriptor]


def _ask_kernel(sources: list[_Source]) -> dict[int, int]:
    """What is true of descriptors right now."""
    question = select.poll()
    for source in sources:
        question.register(source.descriptor, source.asked)
    try:
        return {descriptor: _from_kernel(mask) for descriptor, mask in question.poll(0)}
    except OSError as error:
        if error.errno != errno.EINVAL or len(sources) == 1:
            raise
        # More than RLIMIT_NOFILE, which may be lowered below what is open: poll(2) takes them in smaller portions.
        half = len(sources) // 2
        return _ask_kernel(sources[:half]) | _ask_kernel(sources[half:])
