"""What a user writes after `--engine`: `nats://user:password@host1:4222,host2:4222/NAME?replicas=3&patience=10`.

The servers are tried in turn, so it is enough to name some of a cluster; the others are learned from them. `NAME` is
the name of the log: several logs may live on one cluster. Everything that may be wrong with an address is said before
anything is connected.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from mainspring.errors import SettingError

DEFAULT_NAME: Final = "mainspring"
DEFAULT_PORT: Final = 4222
DEFAULT_PATIENCE: Final = 10.0  # seconds a commit waits for a server: an election takes some, a person's patience ends
MOST_PATIENCE: Final = 60.0  # a second try must come within the server's memory for duplicates, which is twice that
MOST_REPLICAS: Final = 5  # JetStream's own limit

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_OPTIONS = "replicas, patience, tls_ca, tls_cert, tls_key, creds, nkey, token, monitor"


class Address(msgspec.Struct, frozen=True):
    """Where the log is, and how to get in. `replicas` is 0 when the user did not say."""

    servers: tuple[str, ...]  # host:port
    name: str = DEFAULT_NAME
    tls: bool = False
    user: str | None = None
    password: str | None = None
    token: str | None = None
    replicas: int = 0
    patience: float = DEFAULT_PATIENCE
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    creds: str | None = None
    nkey: str | None = None
    monitor: tuple[str, ...] = ()

    @property
    def stream(self) -> str:
        return f"MAINSPRING_{self.name}"

    @property
    def subject(self) -> str:
        return f"mainspring.journal.{self.name}"

    @property
    def bucket(self) -> str:
        """Of the object store that holds snapshots."""
        return f"MAINSPRING_{self.name}"


def parse(text: str) -> Address:
    """Raises `SettingError`; its message never contains a password."""
    parts = urlsplit(text)
    if parts.scheme not in ("nats", "tls"):
        raise _bad("a NATS address begins with nats:// or tls://")
    login, _, hosts = parts.netloc.rpartition("@")
    user, password, token = _login(login)
    name = parts.path.strip("/") or DEFAULT_NAME
    if not _NAME.fullmatch(name):
        raise _bad(f"the log's name {name!r} may have letters, digits, - and _ only")
    try:
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True) if parts.query else ())
    except ValueError as error:
        raise _bad("what follows the ? is not of the form name=value&name=value") from error
    files = {option: options.pop(option, None) for option in ("tls_ca", "tls_cert", "tls_key", "creds", "nkey")}
    address = Address(
        servers=tuple(_server(host) for host in hosts.split(",")),
        name=name,
        tls=parts.scheme == "tls" or any(files[option] for option in ("tls_ca", "tls_cert", "tls_key")),
        user=user,
        password=password,
        token=options.pop("token", token),
        replicas=int(_number(options.pop("replicas", "0"), "replicas", 0, MOST_REPLICAS)),
        patience=_number(options.pop("patience", str(DEFAULT_PATIENCE)), "patience", 0.1, MOST_PATIENCE),
        monitor=tuple(url.rstrip("/") for url in options.pop("monitor", "").split(",") if url),
        **files,
    )
    if options:
        raise _bad(f"the option {next(iter(options))!r} is unknown; there are {_OPTIONS}")
    if bool(address.tls_cert) != bool(address.tls_key):
        raise _bad("tls_cert and tls_key go together")
    return address


def _login(text: str) -> tuple[str | None, str | None, str | None]:
    """A login without a colon is a token, as NATS has it."""
    if not text:
        return None, None, None
    user, colon, password = text.partition(":")
    return (unquote(user), unquote(password), None) if colon else (None, None, unquote(user))


def _server(text: str) -> str:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port or DEFAULT_PORT
    except ValueError as error:
        raise _bad(f"{text!r} is no host and port") from error
    if not host:
        raise _bad("it names no server")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _number(text: str, option: str, least: float, most: float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1
    if not least <= number <= most or (option == "replicas" and number != int(number)):
        raise _bad(f"{option} is a number from {least:g} to {most:g}, not {text!r}")
    return number


def _bad(why: str) -> SettingError:
    return SettingError(
        f"the engine's address does not fit: {why}",
        remedy="write it like nats://user:password@host:4222/NAME?replicas=3",
    )
