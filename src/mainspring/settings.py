"""Every setting, once: its name, type, default, unit, environment name and help text.

A flag beats the environment, the environment beats the TOML file, the file beats the default. The dataclass below is
the only list: the command line's flags, `mainspring settings` and the reference page are made from it. Every
setting is MAINSPRING_<NAME> in the environment; a few have a second, older name there. A name nobody
knows and a value that does not fit are errors that say what to write instead; nothing is guessed.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from mainspring.errors import SettingError

PREFIX: Final = "MAINSPRING_"
FILE_NAME: Final = "mainspring.toml"
_SECRET_OPTIONS: Final = re.compile(r"token|password|secret|authmechanismproperties", re.IGNORECASE)
_SECRETS: Final = re.compile(r"(?<=password=)\S+|(?<=\w:)[^/\s]*@", re.IGNORECASE)  # in what is no address
_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"0", "false", "no", "off"})
URL_VARIABLES: Final = ("MAINSPRING_URL", "BUS_URL")
TOKEN_VARIABLES: Final = ("MAINSPRING_TOKEN", "BUS_TOKEN")
# In the name space of the environment without being settings: where the file is, and who asks.
NOT_SETTINGS: Final = frozenset({"MAINSPRING_CONFIG", "MAINSPRING_TOKEN"})


def setting(
    default: Any, help: str, *, unit: str = "", alias: str = "", least: int | None = None, most: int | None = None
) -> Any:
    """One setting. `alias` is another name in the environment, which MAINSPRING_<NAME> beats."""
    return field(default=default, metadata={"help": help, "unit": unit, "alias": alias, "least": least, "most": most})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a node can be told. Immutable; made by `load` or, in tests, directly."""

    # Where it listens and rests
    host: str = setting("127.0.0.1", "Address to listen on. Anything but loopback needs tokens.")
    port: int = setting(7070, "Port of WebSocket, HTTP and dashboard.", alias="BUS_PORT", least=0, most=65535)
    data: str = setting("data", "Directory of everything that must survive.")
    engine: str = setting(
        "sqlite",
        "Where the log rests: sqlite, sqlite:DIRECTORY, memory, or postgresql://..., nats://... or mongodb://...",
    )
    kernel_socket: str = setting(
        "", "Path of the NDJSON socket. Empty: kernel.sock in $XDG_RUNTIME_DIR/mainspring, or with the data."
    )
    kernel_tcp: str = setting(
        "",
        "NDJSON over TCP: a port of this machine, or HOST:PORT, which needs tokens beyond loopback. Empty: none.",
    )
    loop_socket: str = setting(
        "", "Path of the ZCL1 socket of sys/loop. Empty: loop.sock in $XDG_RUNTIME_DIR/mainspring, or with the data."
    )
    url: str = setting("ws://127.0.0.1:7070", "Where clients find the node.", alias="BUS_URL")
    mongo_url: str = setting("", "Address of MongoDB, for the engine `mongodb` without an address.", alias="MONGO_URL")
    mongo_db: str = setting("mainspring", "MongoDB's database, unless the address names one.", alias="MONGO_DB")

    # Several nodes on one log
    node: str = setting("", "Name of this node among those on one log. Empty: host and data directory decide.")
    node_lease_ms: int = setting(
        10_000, "After so long without a sign of life others take over from a node.", unit="ms", least=1_000
    )
    advertise: str = setting("", "Address under which others are told to find this node. Empty: where it listens.")
    wait_for_engine: int = setting(
        0, "How long boot waits for the engine's server. 0: it has to be there.", unit="s", least=0
    )
    require_durable: bool = setting(False, "Refuse to start when what the engine acknowledged could still be lost.")

    # The loop
    max_turns_per_slice: int = setting(1024, "Turns before the loop yields to its host.", unit="turns", least=1)
    slow_turn_ms: int = setting(100, "Work that blocks the loop for longer is reported by name.", unit="ms", least=1)
    handler_threads: int = setting(
        40, "Plain `def` functions of the program that may run at one time.", unit="threads", least=1
    )
    run_tasks: bool = setting(True, "Run the program's tasks in the node. No: `mainspring worker` processes do.")
    task_concurrency: int = setting(100, "Tasks that run in the node at one time.", unit="tasks", least=1)
    uvloop: bool = setting(True, "Use uvloop when it is installed.")

    # Kernel
    request_timeout_ms: int = setting(
        30_000, "Time for a command or query without its own timeout.", unit="ms", least=1
    )
    keep_trace: bool = setting(False, "Keep headers of the latest messages in the log: traces survive a restart.")

    # Bus
    ack_timeout_ms: int = setting(
        30_000, "Time a consumer has to acknowledge an event.", unit="ms", alias="BUS_ACK_TIMEOUT_MS", least=1
    )
    max_inflight: int = setting(
        32, "Window of a subscription that asks for none.", unit="events", alias="BUS_MAX_INFLIGHT", least=1
    )
    max_window: int = setting(10_000, "Largest window a subscription may have; more is cut.", unit="events", least=100)
    max_attempts: int = setting(5, "Deliveries before an event becomes a dead letter.", unit="deliveries", least=1)
    max_frame_bytes: int = setting(1 << 20, "Largest frame or event.", unit="bytes", least=1024)
    max_key_bytes: int = setting(
        4096, "Largest key of an event. Keys are kept in memory, compared and hashed.", unit="bytes", least=1
    )
    max_topics: int = setting(
        100_000,
        "Topics a node keeps; creating more is refused, and a token creates at most half of them.",
        unit="topics",
        least=1,
    )
    min_every_ms: int = setting(
        100, "Shortest interval of a schedule made by a client; it goes on without its maker.", unit="ms", least=10
    )
    dedupe_window_ms: int = setting(
        600_000, "How long a publish `id` is remembered, so that a second try is stored once.", unit="ms", least=0
    )
    connection_rate: int = setting(0, "Events a connection may publish per second. 0: no limit.", least=0)
    connection_burst: int = setting(0, "Events a connection may publish at once. 0: one second's worth.", least=0)
    allowed_origins: tuple[str, ...] = setting((), "Browser origins that may connect besides the node's own.")
    tokens: tuple[str, ...] = setting((), "Tokens the node accepts, as hashed lines of `mainspring token new`.")
    tokens_file: str = setting("", "File with more such lines.")
    checker_ttl_ms: int = setting(
        1_000, "How long an answer of the program's access checker holds.", unit="ms", least=100
    )
    tls_cert: str = setting("", "PEM file with the certificate chain of the port. Empty: no TLS.")
    tls_key: str = setting("", "PEM file with the certificate's key.")
    tls_client_ca: str = setting(
        "", "PEM file with the authorities whose certificates clients may show in place of a token. Empty: none."
    )
    max_connections: int = setting(
        10_000, "WebSocket connections at one time; more are refused.", unit="connections", least=1
    )
    max_plain_connections: int = setting(
        1_000,
        "Connections beside the WebSockets. When there are more, one that has sent no request makes room.",
        unit="connections",
        least=1,
    )
    max_address_connections: int = setting(
        1_000,
        "Connections of one address, before any token is read. Not of this machine: a proxy may be there. 0: all.",
        unit="connections",
        least=0,
    )
    header_timeout_ms: int = setting(
        10_000, "A connection that has sent no complete request by then only takes a place.", unit="ms", least=100
    )
    body_timeout_ms: int = setting(
        60_000,
        "The body of a request, or a WebSocket frame, that is not complete by then is given up.",
        unit="ms",
        least=100,
    )
    keep_alive_ms: int = setting(
        60_000, "Time a connection may rest between two requests; longer than proxies wait.", unit="ms", least=1_000
    )
    max_subscriptions: int = setting(1_000, "Subscriptions one connection may hold.", unit="subscriptions", least=1)
    max_positions: int = setting(
        50_000,
        "Groups of one topic times its partitions; each is kept in memory. One token makes at most half as many.",
        unit="positions",
        least=1,
    )

    # Quotas: of the agent of a token, or of an address where there are no tokens; none for `admin`. 0: no limit.
    quota_connections: int = setting(
        5_000,
        "WebSockets of one caller; a token gets at most half of max_connections, so that others get in.",
        unit="connections",
        least=0,
    )
    quota_streams: int = setting(
        500,
        "Streams of events (server-sent events) one caller reads at a time; each holds a page.",
        unit="streams",
        least=0,
    )
    quota_requests: int = setting(
        1_000, "HTTP requests of one caller that are being answered; each holds its body.", unit="requests", least=0
    )
    quota_subscriptions: int = setting(
        10_000,
        "Subscriptions of one caller over all its connections; each holds a window.",
        unit="subscriptions",
        least=0,
    )
    quota_topics: int = setting(
        20_000, "Topics one caller creates, counted since the node started; a topic stays.", unit="topics", least=0
    )
    quota_groups: int = setting(
        10_000, "Groups one caller creates, counted since the node started; a group stays.", unit="groups", least=0
    )
    quota_schedules: int = setting(
        1_000, "Schedules one caller creates; each 64 KiB of payload count as one more.", unit="schedules", least=0
    )
    quota_events_per_second: int = setting(
        1_000_000,
        "Events one caller publishes per second; more than a node stores, so that it only stops a flood.",
        unit="events",
        least=0,
    )
    quota_bytes_per_second: int = setting(
        128 << 20, "Bytes one caller publishes per second, which the log has to write.", unit="bytes", least=0
    )
    ping_interval_ms: int = setting(20_000, "A peer that answers no ping for this long is gone.", unit="ms", least=100)
    send_buffer_bytes: int = setting(
        1 << 20, "Bytes a connection may leave unread before deliveries to it pause.", unit="bytes", least=4096
    )
    metrics_interval_ms: int = setting(10_000, "Time between events of system.metrics; 0: none.", unit="ms", least=0)
    history_interval_ms: int = setting(
        10_000, "Time between two measurements for the node's own history; 0: none are made.", unit="ms", least=0
    )
    behind_ms: int = setting(
        60_000, "A group needs attention when its oldest event has waited for so long.", unit="ms", least=1
    )
    retention_interval_ms: int = setting(
        60_000, "Time between two rounds of retention and compaction.", unit="ms", least=10
    )
    group_expiry_ms: int = setting(
        0,
        "Delete groups that had no member and moved nowhere for so long; 0: never, a group's position is data.",
        unit="ms",
        least=0,
    )
    disk_warn: str = setting(
        "10%,5GB",
        "Free space at the log below which the node warns and says what grows: 10%, 5GB, or the smaller of both.",
    )
    disk_reserve: str = setting(
        "5%,512MB",
        "Free space at the log that is kept for acknowledgements and deletions: below it publishes are refused.",
    )
    audit: bool = setting(True, "Write what the bus decided to system.bus.audit.")

    # Runs
    runs_recovery_ms: int = setting(
        5_000,
        "How often runs that no node executes are looked for, and old ones removed.",
        unit="ms",
        least=100,
    )
    runs_retention_ms: int = setting(
        0,
        "How long a finished run and its journal are kept. 0: for ever, because ids must not be forgotten unasked.",
        unit="ms",
        least=0,
    )

    runs_early_signal_ms: int = setting(
        604_800_000,
        "How long signals to a run that has not started are kept. 0: not at all.",
        unit="ms",
        least=0,
    )
    runs_steps_per_turn: int = setting(
        1_024, "Steps of runs that are taken before everything else has its turn.", unit="steps", least=1
    )

    # Beats
    beat_interval_ms: int = setting(0, "Time between two beats. 0: a beat whenever there is work.", unit="ms", least=0)
    retained_beats: int = setting(
        10_000, "Beats whose details stay readable; digests stay for ever. 0: all.", unit="beats", least=0
    )
    slow_enzyme_ms: int = setting(
        1_000, "An enzyme that takes longer is reported while it runs. 0: none.", unit="ms", least=0
    )

    # Stopping
    drain_ms: int = setting(5_000, "Longest time for each of the three steps of an orderly stop.", unit="ms", least=0)

    # What is kept of errors
    keep_tracebacks: bool = setting(True, "Keep the traceback of a failed attempt with it, not only type and text.")
    redact: tuple[str, ...] = setting(
        (), "Regular expressions: what fits is written as *** in errors that are kept with a failed attempt."
    )

    # Logs for people
    log_level: str = setting("info", "debug, info, warning or error; logs go to standard error.")
    log_format: str = setting("text", "text or json.")


@dataclass(frozen=True, slots=True)
class Description:
    """One setting as people see it."""

    name: str
    type: str
    default: Any
    unit: str
    env: str
    alias: str
    help: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings, and for each where its value came from: default, file, environment or flag."""

    settings: Settings
    sources: Mapping[str, str]


def without_secrets(address: str) -> str:
    """An address as it may be shown: without user, password and token, also where it is not quite an address.

    Whoever writes it by hand forgets to quote `/`, `?` or `@` in a password, so all before the last `@` goes.
    """
    scheme, found, rest = address.partition("://")
    if not found:
        return _SECRETS.sub("", address)
    place, question, options = rest.rpartition("@")[2].partition("?")
    kept = (option for option in options.split("&") if not _SECRET_OPTIONS.search(option.partition("=")[0]))
    return f"{scheme}://{place}{question}{'&'.join(kept)}".rstrip("?")


def is_this_machine(host: str) -> bool:
    """Whether a host is this machine itself, for certain."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def environment_name(item: Field[Any]) -> str:
    return PREFIX + item.name.upper()


def describe() -> list[Description]:
    """Every setting in the order of the class."""
    return [
        Description(
            name=item.name,
            type=_type_name(item.type),
            default=None if item.default is MISSING else item.default,
            unit=item.metadata["unit"],
            env=environment_name(item),
            alias=item.metadata["alias"],
            help=item.metadata["help"],
        )
        for item in fields(Settings)
    ]


def load(
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> Loaded:
    """Combine flags, environment and file. Flags that are None count as not given.

    `file` is read when given; it must exist. Raises SettingError with the remedy.
    """
    known = {item.name: item for item in fields(Settings)}
    values: dict[str, object] = {}
    sources = dict.fromkeys(known, "default")

    def take(item: Field[Any], value: object, where: str, source: str) -> None:
        values[item.name], sources[item.name] = _fit(item, value, where), source

    if file is not None:
        for name, value in _read_file(file).items():
            take(_known(known, name, f"{file}"), value, f"{name} in {file}", "file")

    by_alias = {item.metadata["alias"]: item for item in known.values() if item.metadata["alias"]}
    by_env = {environment_name(item): item for item in known.values()}
    for variable, item in (by_alias | by_env).items():  # the aliases first: the other name beats them
        text = (environ or {}).get(variable)
        if text or (text is not None and item.type == "str"):  # an empty variable is how a shell says "not set"
            take(item, _from_text(item, text, variable), variable, "environment")
    for variable in environ or {}:
        if variable.startswith(PREFIX) and variable not in by_env and variable not in NOT_SETTINGS:
            raise SettingError(
                f"unknown setting {variable} in the environment",
                remedy=_suggest(variable, by_env) + "`mainspring settings` lists all of them",
            )

    for name, value in (flags or {}).items():
        if value is not None:
            take(_known(known, name, "the flags"), value, f"--{name.replace('_', '-')}", "flag")

    if values.get("engine") == "mongodb":
        if not values.get("mongo_url"):
            raise SettingError(
                "the engine mongodb has no address", remedy="give it: --engine mongodb://HOST/DATABASE, or MONGO_URL"
            )
        values["engine"] = values["mongo_url"]

    scheme, colon, place = str(values.get("engine")).partition(":")
    if scheme == "sqlite" and colon:
        values |= {"engine": "sqlite", "data": place.removeprefix("//") or Settings().data}
        sources["data"] = sources["engine"]
    return Loaded(Settings(**values), sources)  # type: ignore[arg-type]


def find_file(config: Path | None) -> Path | None:
    """The file to read: the one named, the one the environment names, or the usual one where it exists."""
    if config is not None:
        return config
    if named := os.environ.get("MAINSPRING_CONFIG"):
        return Path(named)
    usual = Path(FILE_NAME)
    return usual if usual.exists() else None


def load_all(config: Path | None = None, **flags: object) -> Loaded:
    """The settings of this process; flags that are None count as not given. Raises SettingError with the remedy."""
    given = {name: str(flag) if isinstance(flag, Path) else flag for name, flag in flags.items()}
    return load(given, os.environ, find_file(config))


def _read_file(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingError(
            f"cannot read {file}: {error.strerror}", remedy="check the path given by --config"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"{file} is not TOML: {error}", remedy="write lines like: port = 7070") from error


def _known(known: Mapping[str, Field[Any]], name: str, where: str) -> Field[Any]:
    if name in known:
        return known[name]
    raise SettingError(
        f"unknown setting {name!r} in {where}", remedy=_suggest(name, known) + "`mainspring settings` lists all of them"
    )


def _suggest(name: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}? " if close else ""


def _is_list(item: Field[Any]) -> bool:
    return item.type == "tuple[str, ...]"


def _type_name(hint: object) -> str:
    return "list of text" if "tuple" in str(hint) else {"str": "text", "bool": "true/false"}.get(str(hint), str(hint))


def _from_text(item: Field[Any], text: str, where: str) -> object:
    """What an environment variable says; the fit is checked afterwards."""
    if _is_list(item):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if item.type == "bool":
        word = text.strip().lower()
        if word not in _TRUE and word not in _FALSE:
            raise SettingError(f"{where} is {text!r}, not true or false", remedy="write true or false")
        return word in _TRUE
    if item.type == "int":
        try:
            return int(text)
        except ValueError:
            remedy = f"write a whole number{_in_unit(item)}"
            raise SettingError(f"{where} is {text!r}, not a whole number", remedy=remedy) from None
    return text


def _fit(item: Field[Any], value: object, where: str) -> object:
    if _is_list(item):
        if not isinstance(value, list | tuple) or not all(isinstance(part, str) for part in value):
            raise SettingError(f"{where} must be a list of text", remedy='write ["a", "b"] in the file, a,b elsewhere')
        return tuple(value)
    if type(value).__name__ != item.type:
        raise SettingError(
            f"{where} is {value!r}, not {_type_name(item.type)}",
            remedy=f"write {_type_name(item.type)}{_in_unit(item)}",
        )
    least, most = item.metadata["least"], item.metadata["most"]
    if isinstance(value, int):
        if least is not None and value < least:
            raise SettingError(f"{where} is {value}, below {least}", remedy=f"write at least {least}{_in_unit(item)}")
        if most is not None and value > most:
            raise SettingError(f"{where} is {value}, above {most}", remedy=f"write at most {most}{_in_unit(item)}")
    return value


def _in_unit(item: Field[Any]) -> str:
    unit = item.metadata["unit"]
    return f" ({unit})" if unit else ""
