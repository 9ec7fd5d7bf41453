"""What a caller is shown of the topics there are.

A name can say a lot (`layoffs.2027`), and so can a count that grows. So lists and numbers follow the same rules as the
events themselves: the scopes of the token, the topics' lists and the program's checker. Who may read a topic sees its
numbers and groups. Who may only publish to it knows its name and settings. Nobody else learns that it is there.

Where no tokens are, a name is only claimed, so hiding anything from it would be for show; and an admin could change the
rights anyway. Both see everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from mainspring.bus import Bus, BusError, Caller, TopicConfig, Who
from mainspring.bus.access.access import Action, origin_of

ASKED_AT_ONCE: Final = 32  # topics that a checker which takes its time is asked about


async def readable_topics(bus: Bus, who: Who, topics: Iterable[str]) -> set[str]:
    """Those of the topics whose events `who` may read."""
    return await _allowed(bus, who, "subscribe", topics)


async def known_topics(bus: Bus, who: Who, topics: Iterable[str]) -> set[str]:
    """Those of the topics that `who` has any right on."""
    names = set(topics)
    may_read = await _allowed(bus, who, "subscribe", names)
    return may_read | await _allowed(bus, who, "publish", names - may_read)


async def _allowed(bus: Bus, who: Who, action: Action, topics: Iterable[str]) -> set[str]:
    if not isinstance(who, Caller) or who.scopes is None or who.is_admin:
        return set(topics)
    within = [topic for topic in topics if who.scopes.allow(action, origin_of(topic))]
    for start in range(0, len(within), ASKED_AT_ONCE):
        asked = (bus.access.ask(topic, action, who) for topic in within[start : start + ASKED_AT_ONCE])
        if waiting := [answer for answer in asked if answer is not None]:
            await asyncio.gather(*waiting)
    return {topic for topic in within if _may(bus, who, action, topic)}


def _may(bus: Bus, caller: Caller, action: Action, topic: str) -> bool:
    state = bus.topics.find(topic)
    try:
        bus.access.check_now(TopicConfig(topic=topic) if state is None else state.config, action, caller)
    except BusError:  # also while the checker has no answer: who is in doubt shows nothing
        return False
    return True
