"""Who may do what to a topic, a group, a message or a run.

Three things are asked, and each can only refuse: the scopes of the caller's token, the lists in the topic's settings,
and the program's own checker where it has one. In a list, a name in `deny` may not; where there is an `allow` list only
the names in it may; no list means everybody. Names in lists may be patterns. A caller without a name is on no list.
Whoever has the scope `admin` needs to be on no allow list; a deny list holds for everybody.

A topic of dead letters holds what was published to another topic, so it needs the rights on that one: `orders.DLQ` is
as private as `orders`. The topics `system.bus.*` are written by the node alone.

A group belongs to the agent that made it, and those of the node's program to the program: taking a share of somebody's
work, moving it and deleting it needs the scope `group:<name>`, or a list of the topic that names the agent.

A message needs the scope `query:<type>` or `command:<type>`. Some are allowed by other rights: `Bus.*` asks for those
on the topic, `Run.*` for `run:<program>`, `Syscall.Outcome` for the command it is about. Who answers these looks at
what they are about; a `Caller` says what its scopes allow.

A checker may be a coroutine function, and a frame of a connection is handled without waiting. So an answer is asked for
first (`ask`), remembered for a short while, and then found by the check itself. It holds for `ttl_ms`, which also keeps
a slow checker from being asked for every event.

What is shown follows the rights: a topic's name can say a lot (`layoffs.2027`), and so can a count that grows. Who may
read a topic sees its numbers and groups. Who may only publish to it knows its name and settings. Nobody else learns
that it is there. Where no tokens are, a name is only claimed, so hiding anything from it would be for show; and an
admin could change the rights anyway. Both see everything.

A reply is for the agent that asked: the node writes it into the header by which a client recognises its replies, and
shows those in topics of replies to nobody else.

Who published an event, and on which connection, is written into its headers by the node alone (`VerifiedHeaders`).
Consumers may rely on them, so what a client sends under these names is replaced. Where no tokens are configured nothing
is proven, and headers stay as they were sent.

The reasons are in docs/decisions/access-and-tokens.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Coroutine, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import lru_cache
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from mainspring.bus.access.patterns import NameSet, Pattern
from mainspring.bus.access.tokens import Scopes
from mainspring.bus.errors import BusError, Forbidden, Unavailable
from mainspring.bus.names import DEAD_LETTERS
from mainspring.bus.protocol import OF_AGENT, REPLIES, REPLY_FOR, Filter
from mainspring.bus.quotas import UNLIMITED, Quota
from mainspring.log import DamagedEvent, StoredEvent
from mainspring.loop import Clock

if TYPE_CHECKING:
    from mainspring.bus.topics.config import AccessList, TopicConfig

logger: logging.Logger = logging.getLogger("mainspring.bus.access")

Action = Literal["publish", "subscribe"]
Checker = Callable[[str, Action, Mapping[str, Any]], bool | Awaitable[bool]]

NODE_ONLY: Final = "system.bus."
PATIENCE_S: Final = 5.0  # a checker that takes longer has not allowed anything
MEMORY: Final = 10_000  # answers that are remembered at once, by a list and of the checker
VERIFIED: Final = frozenset(("agent_id", "sid", "scopes"))  # the headers that only the node writes, or nobody
ASKED_AT_ONCE: Final = 32  # topics that a checker which takes its time is asked about
PROGRAM: Final = "*"  # owns the groups of the node's own program; no agent can have this name
NO_OWNER: Final = ""  # of a group that was made where nothing proved who made it
ABOUT_TYPES: Final = frozenset(("Syscall.Ping", "Syscall.List", "Syscall.Describe"))  # show only what one may send

_to_json = msgspec.json.Encoder().encode
_headers = msgspec.json.Decoder(dict[str, str]).decode


@dataclass(slots=True, eq=False)
class Caller:
    """Someone who asks from outside. `scopes` is None where no tokens are configured: then `agent` is only claimed."""

    agent: str | None = None
    _: KW_ONLY
    sid: str = ""
    scopes: Scopes | None = None
    expires_ms: int = 0
    address: str = ""  # of its machine, for the audit
    revoked: asyncio.Event | None = None  # set when the token is no longer valid
    quota: Quota = UNLIMITED
    verified: bytes = field(default=b"", init=False)  # the headers of this caller's events, as text of JSON members

    def __post_init__(self) -> None:
        if self.scopes is not None:
            self.verified = _to_json({"agent_id": self.agent or "", "sid": self.sid})[1:-1]

    @property
    def is_proven(self) -> bool:
        """Whether a token says who this is."""
        return self.scopes is not None

    @property
    def is_admin(self) -> bool:
        """Whether the caller's token may do everything."""
        return self.scopes is not None and self.scopes.admin

    @property
    def is_limited(self) -> bool:
        """Whether there is something that the caller's token may not do."""
        return self.scopes is not None and not self.scopes.admin

    def may_send(self, kind: str, type: str) -> bool:
        """Whether it may send a message of this type, as far as can be said without looking at its data."""
        scopes = self.scopes
        if kind == "event":  # it makes handlers act, as a command does
            kind = "command"
        if scopes is None or scopes.allow(kind, type):
            return True
        capability = type.partition(".")[0]
        if capability == "Bus":
            return True
        if capability == "Run":
            return scopes.any_of("run")
        if type == "Syscall.Outcome":
            return scopes.any_of("command")
        return type in ABOUT_TYPES and scopes.any_of("query", "command", "run")

    def may_see(self, kind: str, type: str) -> bool:
        """Whether it may know that something of this kind and type happened: a message, a run, an event."""
        scopes = self.scopes
        if scopes is None or scopes.admin:
            return True
        if kind in ("command", "query", "run"):
            return scopes.allow(kind, type)
        return kind in ("reply", "error") and (scopes.allow("command", type) or scopes.allow("query", type))

    def may_hear(self, type: str) -> bool:
        """Whether events of the kernel of this type may be streamed to it."""
        return self.scopes is None or self.scopes.allow("query", type)

    def may_use_runs(self, kind: str, type: str, program: str) -> bool:
        """Whether it may send this message about runs of the program."""
        return self.scopes is None or self.scopes.allow(kind, type) or self.scopes.allow("run", program)


# Text or None is the node's own program acting in a name: lists hold for it, scopes and the checker are not asked.
Who = Caller | str | None


def is_reply_for(agent: str, header: str | None) -> bool:
    """Whether an agent may read an event with this header REPLY_FOR: it asked, or the event is nobody's reply."""
    return header is None or OF_AGENT not in header or header.startswith(agent + OF_AGENT)


def filter_replies(caller: Caller, topic: str, wanted: Filter | None) -> Filter | None:
    """The filter of a subscription as its caller's token allows it: replies are for the agent that asked.

    The node puts the agent before the name by which a client wants its replies, in requests and here.
    """
    if not caller.is_proven or not holds_replies(topic):
        return wanted
    agent, header = caller.agent or "", None if wanted is None else wanted.header
    if header is not None and header[0] == REPLY_FOR and not header[1].startswith(agent + OF_AGENT):
        header = (REPLY_FOR, f"{agent}{OF_AGENT}{header[1]}")
    asker = agent if caller.is_limited else None
    return Filter(None if wanted is None else wanted.key, header, asker)


def holds_replies(topic: str) -> bool:
    """Whether it is a topic of replies, or of their dead letters."""
    return origin_of(topic).endswith(REPLIES)


def readable_events(
    caller: Who, topic: str, entries: list[StoredEvent | DamagedEvent]
) -> list[StoredEvent | DamagedEvent]:
    """Those of a topic's events that the caller may read: no replies to others."""
    if not isinstance(caller, Caller) or not caller.is_limited or not holds_replies(topic):
        return entries
    agent = caller.agent or ""
    return [each for each in entries if isinstance(each, DamagedEvent) or is_reply_for(agent, _reply_for(each))]


def _reply_for(event: StoredEvent) -> str | None:
    return _headers(event.headers).get(REPLY_FOR) if event.headers else None


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
        scopes_of: Callable[[str, int], Iterable[Scopes]] | None = None,
    ) -> None:
        """`scopes_of` gives the scopes of each token of an agent at a time; None where no tokens are configured."""
        self._clock = clock
        self._config_of = config_of
        self._checker = checker
        self._ttl_ms = ttl_ms
        self._scopes_of = scopes_of
        # The agent that a group of a topic belongs to, PROGRAM or NO_OWNER; None: there is no such group.
        self.owner_of: Callable[[str, str], str | None] = lambda _topic, _group: None
        self.closed: Container[str] = ()  # topics whose settings, and so whose lists, cannot be read
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
            if self.closed and origin in self.closed and who.is_limited:
                remedy = "an admin has to write the topic's settings again: they cannot be read"
                raise _refused(agent, action, topic, remedy)
        else:
            agent, is_admin = who, False
        self._check_lists(config, action, agent, is_admin, group)
        if origin != topic:
            self._check_lists(self._config_of(origin), action, agent, is_admin, group)
        if group is not None and isinstance(who, Caller) and who.is_limited:
            self._check_group(config, who, group, change=False)
        if self._checker is not None and isinstance(who, Caller) and not self._settled(origin, action, who):
            raise _refused(agent, action, topic, "the node's access checker refuses it")

    async def check_group(self, topic: str, who: Who, group: str) -> None:
        """Raise Forbidden unless `who` may move and delete this group."""
        await self.check(topic, "subscribe", who, group)
        if isinstance(who, Caller) and who.is_limited:
            self._check_group(self._config_of(topic), who, group, change=True)

    async def check_letters(self, topic: str, who: Who) -> None:
        """Raise Forbidden unless `who` may read the dead letters of this topic. Replies are not for every reader."""
        await self.check(topic, "subscribe", who)
        await self.check(topic + DEAD_LETTERS, "subscribe", who)
        if holds_replies(topic) and isinstance(who, Caller) and who.is_limited:
            raise _refused(who.agent, "subscribe", topic + DEAD_LETTERS, "replies are for those who asked")

    def _check_group(self, config: TopicConfig, caller: Caller, group: str, *, change: bool) -> None:
        assert caller.scopes is not None
        if caller.scopes.allow("group", group) or _names_allowed(config, group):
            return
        owner = self.owner_of(config.topic, group)
        if owner is None or owner == caller.agent or (owner == NO_OWNER and not change):
            return
        remedy = f"use a group of your own, or a token with the scope group:{group}"
        raise _refused(caller.agent, "subscribe", config.topic, remedy, group)

    def check_message(self, who: Who, kind: str, type: str) -> None:
        """Raise Forbidden unless `who` may send a message of this type. What it is about is asked by who answers it."""
        if isinstance(who, Caller) and not who.may_send(kind, type):
            remedy = f"use a token with the scope {kind}:{type}"
            raise Forbidden(f"{who.agent!r} may not send the {kind} {type}", remedy=remedy)

    async def check_owner(self, topic: str, agent: str) -> None:
        """Raise Forbidden unless the agent may publish now, with one of the tokens that it has now."""
        if self._scopes_of is None:
            self.check_now(self._config_of(topic), "publish", agent)
            return
        refused = Forbidden(f"{agent!r} has no valid token", remedy="give the agent one")
        for scopes in self._scopes_of(agent, self._clock.wall_ms()):
            try:
                await self.check(topic, "publish", Caller(agent, scopes=scopes))
            except Forbidden as error:
                refused = error
            else:
                return
        raise refused

    async def allowed(self, who: Who, action: Action, topics: Iterable[str]) -> set[str]:
        """Those of the topics with which `who` may do this. Who may change the rights is shown everything."""
        if not isinstance(who, Caller) or who.scopes is None or who.is_admin:
            return set(topics)
        within = [topic for topic in topics if who.scopes.allow(action, origin_of(topic))]
        for start in range(0, len(within), ASKED_AT_ONCE):
            asked = (self.ask(topic, action, who) for topic in within[start : start + ASKED_AT_ONCE])
            if waiting := [answer for answer in asked if answer is not None]:
                await asyncio.gather(*waiting)
        return {topic for topic in within if self._may(who, action, topic)}

    async def visible(self, who: Who, topics: Iterable[str]) -> set[str]:
        """Those of the topics that `who` has any right on."""
        names = set(topics)
        may_read = await self.allowed(who, "subscribe", names)
        return may_read | await self.allowed(who, "publish", names - may_read)

    def _may(self, caller: Caller, action: Action, topic: str) -> bool:
        try:
            self.check_now(self._config_of(topic), action, caller)
        except BusError:  # also while the checker has no answer: who is in doubt shows nothing
            return False
        return True

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


def _names_allowed(config: TopicConfig, group: str) -> bool:
    """Whether a list of the topic says who may be in the group; then whoever passed it may."""
    lists = (config.group_acl or {}).items()
    return any(each.allow is not None and Pattern(pattern).matches(group) for pattern, each in lists)


def _key(topic: str, action: Action, caller: Caller) -> tuple[Any, ...]:
    return caller.agent, None if caller.scopes is None else caller.scopes.names, action, topic


def _refused(agent: str | None, action: Action, topic: str, remedy: str, group: str | None = None) -> Forbidden:
    who = "a caller without a name" if agent is None else repr(agent)
    where = f"{topic!r}" if group is None else f"{topic!r} as {group!r}"
    return Forbidden(f"{who} may not {action} to {where}", remedy=remedy)
