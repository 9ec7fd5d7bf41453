"""The stream that is the log: making it, knowing it again, and writing to it.

One stream holds everything, because JetStream can store one message atomically but not several in several streams: a
reply and the event that belongs to it must be stored together or not at all.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from mainspring.errors import SettingError
from mainspring.log.contract import FormatError, LogUnavailable
from mainspring.log.engines.nats.address import MOST_PATIENCE, NatsAddress
from mainspring.log.engines.nats.connection import API_SECONDS, NO_RESPONDERS, NO_STREAM, ApiError, ServerLink
from mainspring.log.engines.nats.encoding import FORMAT

FORMAT_KEY: Final = "mainspring_format"
DUPLICATE_SECONDS: Final = 2 * MOST_PATIENCE  # how long the server knows a message again; tries end long before
_NANOSECONDS: Final = 1_000_000_000
NO_MESSAGE: Final = 10037
_NOT_CLUSTERED: Final = 10074  # replicas > 1 not supported in non-clustered mode
_NO_PEERS: Final = 10005  # too few servers for that many replicas
_NAME_IN_USE: Final = 10058  # another node made it in the same moment, with another configuration


class StreamInfo(msgspec.Struct, frozen=True):
    """The stream as the server describes it. `identity` differs for every stream that was ever made."""

    identity: str
    format: int
    first: int
    last: int
    bytes: int
    replicas: int
    storage: str
    persistence: str
    servers: tuple[str, ...]  # names; empty outside a cluster


async def find(link: ServerLink, address: NatsAddress, *, seconds: float = API_SECONDS) -> StreamInfo | None:
    """The log's stream; None when there is none. Raises `FormatError` when it is not ours."""
    try:
        info = await link.api(f"STREAM.INFO.{address.stream}", seconds=seconds)
    except ApiError as error:
        if error.code == NO_STREAM:
            return None
        raise _without_jetstream(error) from error
    return _checked(info, address)


async def make(link: ServerLink, address: NatsAddress, *, patient: bool) -> StreamInfo:
    """Make the stream. Without a wish of the user it has three replicas where there are three servers, else one.

    A cluster that just started may not have found all its servers yet: `patient` raises `LogUnavailable` then.
    """
    wishes = [address.replicas] if address.replicas else [3, 1]
    for replicas in wishes:
        try:
            return _checked(await link.api(f"STREAM.CREATE.{address.stream}", _config(address, replicas)), address)
        except ApiError as error:
            if error.code == _NAME_IN_USE and (found := await find(link, address)) is not None:
                return found
            if error.code not in (_NOT_CLUSTERED, _NO_PEERS):
                raise _without_jetstream(error) from error
            if patient and error.code == _NO_PEERS:
                raise LogUnavailable(f"the cluster has not enough servers: {error}", remedy="start them") from error
            if replicas == wishes[-1]:
                raise SettingError(
                    f"the NATS server cannot keep {replicas} replicas: {error}",
                    remedy="start that many servers as one cluster, or ask for fewer with replicas=",
                ) from error
    raise AssertionError("there is always a wish")


async def set_replicas(link: ServerLink, address: NatsAddress) -> StreamInfo:
    """Bring an existing stream to the number of replicas the user asks for."""
    info = await link.api(f"STREAM.INFO.{address.stream}")
    try:
        config = info["config"] | {"num_replicas": address.replicas}
        return _checked(await link.api(f"STREAM.UPDATE.{address.stream}", config), address)
    except ApiError as error:
        raise SettingError(
            f"the log's stream has {info['config'].get('num_replicas', 1)} replicas and cannot get {address.replicas}: "
            f"{error}",
            remedy="start that many servers as one cluster, or ask for as many replicas as it has",
        ) from error


async def purge(link: ServerLink, address: NatsAddress, below: int) -> None:
    """Drop the messages before `below`."""
    await link.api(f"STREAM.PURGE.{address.stream}", {"seq": below})


def _config(address: NatsAddress, replicas: int) -> dict[str, Any]:
    return {
        "name": address.stream,
        "description": "A log of Mainspring: every commit of every node, in one order",
        "subjects": [address.subject],
        "retention": "limits",
        "storage": "file",
        "num_replicas": replicas,
        "discard": "new",  # a stream that may not grow refuses the newest; it never drops the oldest
        "max_msgs": -1,
        "max_bytes": -1,
        "max_age": 0,
        "max_msgs_per_subject": -1,
        "duplicate_window": int(DUPLICATE_SECONDS * _NANOSECONDS),
        "deny_delete": True,  # a message taken out of the middle would leave the nodes with different logs
        "metadata": {FORMAT_KEY: str(FORMAT)},
    }


def _checked(info: dict[str, Any], address: NatsAddress) -> StreamInfo:
    config, state = info["config"], info["state"]
    found = (config.get("metadata") or {}).get(FORMAT_KEY)
    if found is None or config.get("subjects") != [address.subject]:
        raise FormatError(
            f"there is a stream {address.stream} on the server, but it is not a log of Mainspring",
            remedy="choose another name for the log: nats://host:4222/NAME",
        )
    if not found.isdecimal() or int(found) > FORMAT:
        raise FormatError(
            f"the log has format {found}; this version of Mainspring knows formats up to {FORMAT}",
            remedy="use the newer version that made it",
        )
    cluster = info.get("cluster") or {}
    servers = [cluster.get("leader"), *(replica.get("name") for replica in cluster.get("replicas") or ())]
    return StreamInfo(
        identity=info["created"],
        format=int(found),
        first=state["first_seq"],
        last=state["last_seq"],
        bytes=state["bytes"],
        replicas=config.get("num_replicas", 1),
        storage=config.get("storage", "file"),
        persistence=config.get("persist_mode") or "default",
        servers=tuple(server for server in servers if server),
    )


def _without_jetstream(error: ApiError) -> LogUnavailable:
    if error.status == NO_RESPONDERS or error.code == 10039:
        return LogUnavailable(
            f"the NATS server does not offer JetStream: {error}",
            remedy="start it with JetStream (nats-server -js), and wait until the cluster has a leader",
        )
    return LogUnavailable(f"JetStream refused: {error}", remedy="see the server's log; then try again")
