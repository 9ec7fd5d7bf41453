"""A topic's settings: what they may be, and how one is changed.

A topic exists from the first moment someone creates, publishes to or subscribes to it; who only publishes gets the
defaults. Partitions only grow, because a key's partition depends on their number: after a change, events of one key may
lie in two partitions, and their order holds only within each.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from mainspring.bus.access.patterns import Pattern
from mainspring.bus.errors import BadFrame
from mainspring.bus.names import Name, check_name

MAX_PARTITIONS: Final = 1024  # each is a cursor per group; more would only make subscribing slow

Natural = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_SEGMENT: Final = r"(\*\*?|[^*.]*)"
NameOrPattern = Annotated[  # what `Pattern` takes; its own error says more than the shape
    str, msgspec.Meta(extra_json_schema={"minLength": 1, "pattern": rf"^{_SEGMENT}(\.{_SEGMENT})*$"})
]


class AccessList(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Who may. A name in `deny` may not, even if `allow` has it; without `allow` everybody else may.

    A name may be a pattern: `*` is one segment between dots, `**` any number of them.
    """

    allow: tuple[NameOrPattern, ...] | None = None
    deny: tuple[NameOrPattern, ...] = ()


class TopicConfig(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """The settings of one topic, as POST /topics takes and gives them. 0 means "no limit" or "the node's default"."""

    topic: Name
    partitions: Annotated[int, msgspec.Meta(ge=1, le=MAX_PARTITIONS)] = 1
    retention_ms: Natural = 0
    retention_bytes: Natural = 0
    retention_count: Natural = 0
    max_attempts: Natural = 0
    ack_timeout_ms: Natural = 0
    compact: bool = False
    tombstone_ms: Natural = 86_400_000  # a day: time for every reader to learn that a key is gone
    audit: bool = True
    rate_per_second: Natural = 0
    rate_burst: Natural = 0
    publish_acl: AccessList | None = msgspec.field(default=None, name="publishACL")
    subscribe_acl: AccessList | None = msgspec.field(default=None, name="subscribeACL")
    group_acl: dict[NameOrPattern, AccessList] | None = msgspec.field(default=None, name="groupACL")


class TopicChange(msgspec.Struct, frozen=True):
    """The settings after POST /topics, and whether the topic is new."""

    config: TopicConfig
    created: bool


def parse_topic(data: bytes | str, current: TopicConfig | None = None) -> TopicConfig:
    """A topic's settings from JSON text; an access list may be given as a plain list. Raises BadFrame.

    What the text does not mention is as in `current`, or as by default.
    """
    try:
        members = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadFrame(f"the settings are not JSON: {error}") from None
    if not isinstance(members, dict):
        raise BadFrame("the settings of a topic are a JSON object")
    return topic_from(members, current)


def topic_from(members: dict[str, object], current: TopicConfig | None = None) -> TopicConfig:
    """A topic's settings from plain data. Absent means "as in `current`", null "as by default". Raises BadFrame."""
    kept: dict[str, object] = {} if current is None else msgspec.to_builtins(current)
    cleaned: dict[str, object] = {name: value for name, value in {**kept, **members}.items() if value is not None}
    for name in ("publishACL", "subscribeACL"):
        if isinstance(cleaned.get(name), list):
            cleaned[name] = {"allow": cleaned[name]}
    for name, value in cleaned.items():
        if isinstance(value, float) and value.is_integer():  # 1.0 is an integer, too
            cleaned[name] = int(value)
    of_groups = cleaned.get("groupACL")
    if isinstance(of_groups, dict):
        cleaned["groupACL"] = {
            group: {"allow": listed} if isinstance(listed, list) else listed for group, listed in of_groups.items()
        }
    try:
        config = msgspec.convert(cleaned, TopicConfig)
    except msgspec.ValidationError as error:
        raise BadFrame(f"the settings do not fit: {error}") from None
    check_name("topic", config.topic)
    _check_lists(config)
    return config


def _check_lists(config: TopicConfig) -> None:
    """Raise BadFrame for an access list with something that cannot be a pattern: it would match nothing, silently."""
    of_groups = config.group_acl or {}
    for listed in (config.publish_acl, config.subscribe_acl, *of_groups.values()):
        for name in () if listed is None else (*(listed.allow or ()), *listed.deny):
            Pattern(name)
    for group in of_groups:
        Pattern(group)


def topic_data(config: TopicConfig) -> dict[str, Any]:
    """The settings as plain data: topic and partitions always, everything else only where it is not the default."""
    data: dict[str, Any] = msgspec.to_builtins(config)
    data.setdefault("partitions", 1)
    return data


def encode_topic(config: TopicConfig) -> bytes:
    """The settings as JSON text: topic and partitions always, everything else only where it is not the default."""
    return msgspec.json.encode(topic_data(config))


class DeclaredGroup(msgspec.Struct, frozen=True):
    """What a consumer of this node's own program says about its group; 0: nothing.

    `in_process`: there is such a consumer, a function of this process gets the events.
    """

    max_attempts: int = 0
    concurrency: int = 0  # events that all members may have at a time
    in_process: bool = True


UNDECLARED = DeclaredGroup(in_process=False)
