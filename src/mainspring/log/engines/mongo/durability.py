"""What an acknowledgement of this server means, said in one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mainspring.log.contract import Durability


def describe(hello: Mapping[str, Any], write_concern: Mapping[str, Any]) -> Durability:
    """`hello` is the server's answer to that command; `write_concern` is what the client asks for."""
    w, journaled = write_concern.get("w", "majority"), write_concern.get("j", False)
    if w != "majority" or not journaled:
        asked = f"w={w}, journal={'true' if journaled else 'false'}"
        return Durability(
            durable=False,
            statement=f"the address asks for {asked}: an acknowledged commit can be lost; leave both out of it",
        )
    if hello.get("msg") == "isdbgrid":
        return Durability(durable=True, statement="sharded MongoDB: a majority of each shard has it in its journal")
    name = hello.get("setName")
    if name is None:
        return Durability(
            durable=True,
            statement="one MongoDB server: an acknowledged commit is in its journal: it outlives power, not the disk",
        )
    members = len(hello.get("hosts", ())) + len(hello.get("passives", ()))
    many = f"{members // 2 + 1} of {members} members have" if members > 1 else "its only member has"
    return Durability(
        durable=True, statement=f"MongoDB replica set {name}: {many} an acknowledged commit in the journal"
    )
