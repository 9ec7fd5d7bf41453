"""The stream that is the log: making it, knowing it again, and writing to it.

One stream holds everything, because JetStream can store one message atomically but not several in several streams: a
reply and the event that belongs to it must be stored together or not at all.
"""

from __future__ import annotations

import asyncio
import base64
import urllib.request
from datetime import datetime
from typing import Any, Final

import msgspec

from mainspring.errors import SettingError
from mainspring.log.contract import Durability, FormatError, LogUnavailable
from mainspring.log.engines.nats.address import MOST_PATIENCE, NatsAddress
from mainspring.log.engines.nats.connection import ASK_SECONDS, NO_RESPONDERS, NO_STREAM, ApiError, ServerLink
from mainspring.log.engines.nats.encoding import FORMAT, decode_envelope
from mainspring.log.engines.nats.history import StreamMessage

FORMAT_KEY: Final = "mainspring_format"
DUPLICATE_SECONDS: Final = 2 * MOST_PATIENCE  # how long the server knows a message again; tries end long before
_NANOSECONDS: Final = 1_000_000_000
NO_MESSAGE: Final = 10037
GONE: Final = "the log's stream is gone from the server; restore it from a backup or a node's replica"
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
    drops: str = ""  # settings that somebody gave it and that make it drop what nodes may still need


async def find(link: ServerLink, address: NatsAddress) -> StreamInfo | None:
    """The log's stream; None when there is none. Raises `FormatError` when it is not ours."""
    try:
        info = await link.api(f"STREAM.INFO.{address.stream}", seconds=ASK_SECONDS)
    except ApiError as error:
        if error.code == NO_STREAM:
            return None
        raise _without_jetstream(error) from error
    return _checked(info, address)


async def time_ms(link: ServerLink, address: NatsAddress) -> int:
    """What time it is at the server that leads the stream."""
    info = await link.api(f"STREAM.INFO.{address.stream}")
    if "ts" not in info:
        raise LogUnavailable("this NATS server does not say what time it is", remedy="use version 2.10 or newer")
    return _milliseconds(info["ts"])


async def message_at(link: ServerLink, address: NatsAddress, seq: int) -> StreamMessage | None:
    """A message of the stream, without its body's meaning; None when it is not there."""
    try:
        message = (await link.api(f"STREAM.MSG.GET.{address.stream}", {"seq": seq}))["message"]
    except ApiError as error:
        if error.code == NO_MESSAGE:
            return None
        raise
    payload = base64.b64decode(message.get("data") or "")
    return StreamMessage(seq, _milliseconds(message["time"]), len(payload), decode_envelope(payload))


def _milliseconds(time: str) -> int:
    """Of a time as Go writes it, with up to nine digits behind the second."""
    seconds, _, fraction = time.rstrip("Z").partition(".")
    whole = int(datetime.fromisoformat(f"{seconds}+00:00").timestamp())
    return whole * 1000 + int(fraction.ljust(3, "0")[:3])


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
        drops=_drops(config),
    )


def _drops(config: dict[str, Any]) -> str:
    """We make streams without limits, which refuse the newest rather than drop the oldest. Were they changed?"""
    limits = ["max_age"] if config.get("max_age") else []
    if config.get("discard") != "new":
        limits += [name for name in ("max_msgs", "max_bytes", "max_msgs_per_subject") if config.get(name, -1) > 0]
    return ", ".join(f"{name}={config[name]}" for name in limits)


def _without_jetstream(error: ApiError) -> LogUnavailable:
    if error.status == NO_RESPONDERS or error.code == 10039:
        return LogUnavailable(
            f"the NATS server does not offer JetStream: {error}",
            remedy="start it with JetStream (nats-server -js), and wait until the cluster has a leader",
        )
    return LogUnavailable(f"JetStream refused: {error}", remedy="see the server's log; then try again")


# -- what an acknowledgement means
#
# JetStream acknowledges a message when a majority of the replicas has it, not when it is on a disk: by default a server
# syncs its files every two minutes. The stream says how many replicas there are. How often a server syncs can be read
# at its monitoring port only, which may be closed. What is not known is said to be unknown, and counts as not durable.

MONITOR_PORT: Final = 8222  # where servers that have one usually put it
MONITOR_SECONDS: Final = 2.0
DEFAULT_SYNC_SECONDS: Final = 120


class _Config(msgspec.Struct):
    sync_interval: int = DEFAULT_SYNC_SECONDS * 1_000_000_000
    sync_always: bool = False


class _JetStream(msgspec.Struct):
    config: _Config | None = None


class _Server(msgspec.Struct):
    """The parts of `/varz` that are needed."""

    server_name: str
    jetstream: _JetStream


async def durability_and_window(
    address: NatsAddress, found: StreamInfo, hosts: list[str]
) -> tuple[Durability, float | None]:
    """What an acknowledgement means, and how many seconds of acknowledged commits may be lost; None if not known.

    `hosts` are the servers that may have a monitoring port at the usual place; asked when the user named none.
    """
    if found.drops:
        text = f"the stream was changed ({found.drops}) and drops what was acknowledged; set it back to no limits"
        return Durability(False, text), None
    if found.storage != "file":
        text = "the stream is kept in memory: what was acknowledged is lost when the servers stop"
        return Durability(False, text), None
    if found.persistence == "async":
        text = "the stream acknowledges before it writes (persist_mode: async): nothing is certain"
        return Durability(False, text), None
    monitors = address.monitor or tuple(f"http://{host.rpartition(':')[0]}:{MONITOR_PORT}" for host in hosts)
    loop = asyncio.get_running_loop()
    asked = await asyncio.gather(*(loop.run_in_executor(None, _ask, monitor) for monitor in dict.fromkeys(monitors)))
    known = {server.server_name: server.jetstream.config for server in asked if server is not None}
    configs = [known.get(name) for name in found.servers] or [None]
    copies = f"{found.replicas} replicas" if found.replicas > 1 else "one replica"
    seconds = _window_s(configs)
    if seconds == 0:
        text = (
            f"{copies}, and every server syncs each message to its disk before it acknowledges: what was acknowledged "
            "survives the loss of power of every machine"
        )
        return Durability(True, text), seconds
    text = f"{copies}; {_survives(found.replicas)}; {_window(configs, seconds)}"
    return Durability(False, text, known=seconds is not None), seconds


def _window_s(configs: list[_Config | None]) -> float | None:
    """The longest time between two syncs; 0 when every server syncs each message, None when one does not report."""
    if any(config is None for config in configs):
        return None
    return max(0 if config.sync_always else config.sync_interval / 1e9 for config in configs if config is not None)


def _survives(replicas: int) -> str:
    if replicas > 2:
        tolerated = (replicas - 1) // 2
        servers = "one server" if tolerated == 1 else f"{tolerated} servers"
        return f"what was acknowledged survives the crash of {servers} at a time"
    return "what was acknowledged survives a crash of the server, not the loss of its machine"


def _window(configs: list[_Config | None], seconds: float | None) -> str:
    alone = len(configs) == 1
    when = "when it loses power" if alone else "when one loses power while another is stopped, paused or cut off"
    if seconds is None:
        unknown = sum(config is None for config in configs)
        who = "the server syncs" if alone else f"{unknown} of the servers sync"
        return (
            f"how often {who} to disk is not known (by default every {DEFAULT_SYNC_SECONDS} s): {when}, what was "
            "acknowledged since then is lost. Name the monitoring port (monitor=http://host:8222) to make it known"
        )
    who = "the server syncs" if alone else "the servers sync"
    return (
        f"{who} to disk every {seconds:g} s: {when}, up to {seconds:g} s of what was acknowledged is lost. "
        "Set sync_interval: always to rule that out"
    )


def _ask(monitor: str) -> _Server | None:
    try:
        with urllib.request.urlopen(f"{monitor}/varz", timeout=MONITOR_SECONDS) as reply:
            return msgspec.json.decode(reply.read(), type=_Server)
    except (OSError, ValueError, msgspec.MsgspecError):
        return None
