"""What an acknowledgement means.

JetStream acknowledges a message when a majority of the replicas has it, not when it is on a disk: by default a server
syncs its files every two minutes. The stream says how many replicas there are. How often a server syncs can be read at
its monitoring port only, which may be closed. What is not known is said to be unknown, and counts as not durable.
"""

from __future__ import annotations

import asyncio
import urllib.request
from typing import Final

import msgspec

from mainspring.log.contract import Durability
from mainspring.log.engines.nats.address import NatsAddress
from mainspring.log.engines.nats.stream import StreamInfo

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
    return Durability(False, f"{copies}; {_survives(found.replicas)}; {_window(configs, seconds)}"), seconds


def _window_s(configs: list[_Config | None]) -> float | None:
    """The longest time between two syncs; 0 when every server syncs each message, None when one does not report."""
    if any(config is None for config in configs):
        return None
    return max(0 if config.sync_always else config.sync_interval / 1e9 for config in configs if config is not None)


def _survives(replicas: int) -> str:
    if replicas > 2:
        tolerated = (replicas - 1) // 2
        machines = "one machine" if tolerated == 1 else f"{tolerated} machines"
        return f"what was acknowledged survives the loss of {machines} at a time"
    return "what was acknowledged survives a crash of the server, not the loss of its machine"


def _window(configs: list[_Config | None], seconds: float | None) -> str:
    alone = len(configs) == 1
    when = "when it loses power" if alone else "when all lose power at once"
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
