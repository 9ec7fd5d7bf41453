"""Who may publish to and subscribe to a topic: the lists in its settings.

A name in `deny` may not; where there is an `allow` list only the names in it may; no list means everybody. A caller
without a name is on no list. The topics `system.bus.*` are written by the node alone.
"""

from __future__ import annotations

from typing import Final, Literal

from mainspring.bus.errors import Forbidden
from mainspring.bus.topics import AccessList, TopicConfig

Action = Literal["publish", "subscribe"]
NODE_ONLY: Final = "system.bus."


def check_access(config: TopicConfig, action: Action, agent: str | None) -> None:
    """Raise Forbidden unless `agent` may do `action`."""
    if action == "publish" and config.topic.startswith(NODE_ONLY):
        raise Forbidden(f"{config.topic!r} is written by the node only", remedy="publish to a topic of your own")
    listed = config.publish_acl if action == "publish" else config.subscribe_acl
    if listed is not None and not _may(listed, agent):
        who = "a caller without a name" if agent is None else repr(agent)
        raise Forbidden(
            f"{who} may not {action} to {config.topic!r}",
            remedy=f"name the agent in the topic's {action}ACL, or connect as one that is named",
        )


def _may(listed: AccessList, agent: str | None) -> bool:
    if agent is not None and agent in listed.deny:
        return False
    if listed.allow is not None:
        return agent is not None and agent in listed.allow
    return agent is not None or not listed.deny
