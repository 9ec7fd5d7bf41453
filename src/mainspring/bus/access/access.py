"""Who may do what to a topic.

Three things are asked, and each can only refuse: the scopes of the caller's token, the lists in the topic's settings,
and the program's own checker where it has one. In a list, a name in `deny` may not; where there is an `allow` list only
the names in it may; no list means everybody. Names in lists may be patterns. A caller without a name is on no list.
Whoever has the scope `admin` needs to be on no allow list; a deny list holds for everybody.

A topic of dead letters holds what was published to another topic, so it needs the rights on that one: `orders.DLQ` is
as private as `orders`. The topics `system.bus.*` are written by the node alone.

A checker may be a coroutine function, and a frame of a connection is handled without waiting. So an answer is asked for
first (`ask`), remembered for a short while, and then found by the check itself. It holds for `ttl_ms`, which also keeps
a slow checker from being asked for every event.

Who published an event, on which connection and with which rights is written into its headers by the node alone
(`VerifiedHeaders`). Consumers may rely on them, so what a client sends under these names is replaced. Where no tokens
are configured nothing is proven, and headers stay as they were sent.

The reasons are in docs/decisions/access-and-tokens.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import lru_cache
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from mainspring.bus.access.patterns import NameSet, Pattern
from mainspring.bus.access.tokens import Scopes
from mainspring.bus.errors import Forbidden, Unavailable
from mainspring.bus.names import DEAD_LETTERS
from mainspring.bus.quotas import UNLIMITED, Quota
from mainspring.loop import Clock

if TYPE_CHECKING:
    from mainspring.bus.topics.config import AccessList, TopicConfig

logger: logging.Logger = logging.getLogger("mainspring.bus.access")

Action = Literal["publish", "subscribe"]
Checker = Callable[[str, Action, Mapping[str, Any]], bool | Awaitable[bool]]

NODE_ONLY: Final = "system.bus."
PATIENCE_S: Final = 5.0  # a checker that takes longer has not allowed anything
MEMORY: Final = 10_000  # answers that are remembered at once, by a list and of the checker
VERIFIED: Final = frozenset(("agent_id", "sid", "scopes"))  # the headers that only the node writes

_to_json = msgspec.json.Encoder().encode


@dataclass(slots=True, eq=False)
class Caller:
    """Someone who asks from outside. `scopes` is None where no tokens are configured: then `agent` is only claimed."""

    agent: str | None = None
    _: KW_ONLY
    sid: str = ""
    scopes: Scopes | None = None
    expires_ms: int = 0
    revoked: asyncio.Event | None = None  # set when the token is no longer valid
    quota: Quota = UNLIMITED
    verified: bytes = field(default=b"", init=False)  # the headers of this caller's events, as text of JSON members

    def __post_init__(self) -> None:
        if self.scopes is not None:
            verified = {"agent_id": self.agent or "", "sid": self.sid, "scopes": str(self.scopes)}
            self.verified = _to_json(verified)[1:-1]

    @property
    def is_proven(self) -> bool:
        """Whether a token says who this is."""
        return self.scopes is not None

    @property
    def is_admin(self) -> bool:
        """Whether the caller's token may do everything."""
        return self.scopes is not None and self.scopes.admin


# Text or None is the node's own program acting in a name: lists hold for it, scopes and the checker are not asked.
Who = Caller | str | None


class VerifiedHeaders:
    """What the node adds to the headers of events, as JSON text.

    Made once for many events: encoding it for each would cost more than checking its rights. `verified` is
    `Caller.verified`, the text of the members that say who; `stamp` is a member that is added besides. Either may be
    empty.
    """

    __slots__ = ("_is_proven", "_members", "alone")

    def __init__(self, verified: bytes, stamp: bytes = b"") -> None:
        self._members = b"%b,%b" % (verified, stamp) if verified and stamp else verified or stamp
        self._is_proven = bool(verified)
        # for an event without headers of its own
        self.alone: bytes | None = b"{%b}" % self._members if self._members else None

    def added_to(self, headers: Mapping[str, str]) -> bytes | None:
        """The headers of an event with these; its own of the same names are left out."""
        if not self._members:
            return _to_json(headers)
        kept = {name: value for name, value in headers.items() if not (self._is_proven and name in VERIFIED)}
        return b"%b,%b}" % (_to_json(kept)[:-1], self._members) if kept else self.alone


@lru_cache(maxsize=1_024)  # a connection's requests all get the same one
def verified_headers(verified: bytes, stamp: bytes = b"") -> VerifiedHeaders:
    return VerifiedHeaders(verified, stamp)


class _List:
    """An access list, ready to be asked. Remembers its answers: patterns are slower than names."""

    def __init__(self, source: AccessList) -> None:
        self.source = source
        self._allow = None if source.allow is None else NameSet(source.allow)
        self._deny = NameSet(source.deny)
        self.lets: Callable[[str | None, bool], bool] = lru_cache(MEMORY)(self._lets)

    def _lets(self, agent: str | None, is_admin: bool) -> bool:
        if agent is None:
            return self._allow is None and not self._deny
        return (self._allow is None or is_admin or agent in self._allow) and agent not in self._deny


class Access:
    """Decides. `config_of` gives the settings of a topic, the defaults for one that does not exist."""

    def __init__(
        self,
        clock: Clock,
        config_of: Callable[[str], TopicConfig],
        *,
        checker: Checker | None = None,
        ttl_ms: int = 1_000,
    ) -> None:
        self._clock = clock
        self._config_of = config_of
        self._checker = checker
        self._ttl_ms = ttl_ms
        self._lists: dict[tuple[str, str], _List] = {}
        self._answers: dict[tuple[Any, ...], tuple[bool, int]] = {}

    @property
    def has_checker(self) -> bool:
        """Whether the program decides, too: only then an answer may have to be waited for."""
        return self._checker is not None

    async def check(self, topic: str, action: Action, who: Who, group: str | None = None) -> None:
        """Raise Forbidden unless `who` may do `action`, and be in `group` where one is given.

        The topic need not exist yet.
        """
        waiting = self.ask(topic, action, who)
        if waiting is not None:
            await waiting
        self.check_now(self._config_of(topic), action, who, group)

    def check_now(self, config: TopicConfig, action: Action, who: Who, group: str | None = None) -> None:
        """The same without waiting: an answer that takes time must have been asked for."""
        topic = config.topic
        if action == "publish" and topic.startswith(NODE_ONLY):
            raise Forbidden(f"{topic!r} is written by the node only", remedy="publish to a topic of your own")
        origin = origin_of(topic)
        if isinstance(who, Caller):
            self._check_scopes(who, action, topic, origin)
            agent, is_admin = who.agent, who.is_admin
        else:
            agent, is_admin = who, False
        self._check_lists(config, action, agent, is_admin, group)
        if origin != topic:
            self._check_lists(self._config_of(origin), action, agent, is_admin, group)
        if self._checker is not None and isinstance(who, Caller) and not self._settled(origin, action, who):
            raise _refused(agent, action, topic, "the node's access checker refuses it")

    def check_admin(self, who: Who, what: str) -> None:
        """Raise Forbidden unless `who` may change how the node works. Without tokens everybody may."""
        if isinstance(who, Caller) and who.is_proven and not who.is_admin:
            raise Forbidden(f"{who.agent!r} may not {what}", remedy="use a token with the scope admin")

    # -- scopes and lists

    def _check_scopes(self, caller: Caller, action: Action, topic: str, origin: str) -> None:
        if caller.scopes is None:
            return
        if 0 < caller.expires_ms <= self._clock.wall_ms() or (caller.revoked is not None and caller.revoked.is_set()):
            raise Forbidden("the token is no longer valid", remedy="connect with a new one")
        if not caller.scopes.allow(action, origin):
            raise _refused(caller.agent, action, topic, f"use a token with the scope {action}:{origin}")

    def _check_lists(
        self, config: TopicConfig, action: Action, agent: str | None, is_admin: bool, group: str | None
    ) -> None:
        listed = config.publish_acl if action == "publish" else config.subscribe_acl
        if listed is not None and not self._list(config.topic, action, listed).lets(agent, is_admin):
            remedy = f"name the agent in the topic's {action}ACL, or connect as one that is named"
            raise _refused(agent, action, config.topic, remedy)
        if group is None or config.group_acl is None:
            return
        for pattern, of_group in config.group_acl.items():
            if not Pattern(pattern).matches(group):
                continue
            if not self._list(config.topic, f"group {pattern}", of_group).lets(agent, is_admin):
                remedy = f"name the agent in the topic's groupACL for {pattern!r}, or use another group"
                raise _refused(agent, action, config.topic, remedy, group)

    def _list(self, topic: str, what: str, source: AccessList) -> _List:
        found = self._lists.get((topic, what))
        if found is None or found.source is not source:
            found = self._lists[(topic, what)] = _List(source)
        return found

    # -- the checker

    def ask(self, topic: str, action: Action, who: Who) -> Coroutine[Any, Any, None] | None:
        """What to wait for before `check_now` can tell; None when it can tell now."""
        if self._checker is None or not isinstance(who, Caller):
            return None
        origin = origin_of(topic)
        if self._remembered(origin, action, who) is not None:
            return None
        answer = self._call(origin, action, who)
        if isawaitable(answer):
            return self._wait(answer, origin, action, who)
        self._remember(origin, action, who, answer is True)
        return None

    def _settled(self, topic: str, action: Action, caller: Caller) -> bool:
        waiting = self.ask(topic, action, caller)
        if waiting is not None:
            waiting.close()
            raise Unavailable("the node's access checker has not answered yet", remedy="try again")
        return self._remembered(topic, action, caller) is True

    def _call(self, topic: str, action: Action, caller: Caller) -> Any:
        assert self._checker is not None
        names = caller.scopes.names if caller.scopes is not None else ()
        try:
            return self._checker(topic, action, {"agent": caller.agent, "scopes": names})
        except Exception:
            logger.exception("the access checker failed for %s of %r; it counts as a refusal", action, topic)
            return False

    async def _wait(self, answer: Awaitable[Any], topic: str, action: Action, caller: Caller) -> None:
        allowed = False
        try:
            async with asyncio.timeout(PATIENCE_S):
                allowed = await answer is True
        except Exception:
            logger.exception("the access checker failed for %s of %r; it counts as a refusal", action, topic)
        self._remember(topic, action, caller, allowed)

    def _remembered(self, topic: str, action: Action, caller: Caller) -> bool | None:
        found = self._answers.get(_key(topic, action, caller))
        return found[0] if found is not None and found[1] > self._clock.now_ms() else None

    def _remember(self, topic: str, action: Action, caller: Caller, allowed: bool) -> None:
        if len(self._answers) >= MEMORY:
            self._answers.clear()
        self._answers[_key(topic, action, caller)] = (allowed, self._clock.now_ms() + self._ttl_ms)


def origin_of(topic: str) -> str:
    """The topic whose rights count: of a topic of dead letters, the one they come from."""
    while topic.endswith(DEAD_LETTERS) and len(topic) > len(DEAD_LETTERS):
        topic = topic[: -len(DEAD_LETTERS)]
    return topic


def _key(topic: str, action: Action, caller: Caller) -> tuple[Any, ...]:
    return caller.agent, None if caller.scopes is None else caller.scopes.names, action, topic


def _refused(agent: str | None, action: Action, topic: str, remedy: str, group: str | None = None) -> Forbidden:
    who = "a caller without a name" if agent is None else repr(agent)
    where = f"{topic!r}" if group is None else f"{topic!r} as {group!r}"
    return Forbidden(f"{who} may not {action} to {where}", remedy=remedy)
