"""What a user writes after `--engine`: `nats://user:password@host1:4222,host2:4222/NAME?replicas=3&patience=10`.

The servers are tried in turn, so it is enough to name some of a cluster; the others are learned from them. `NAME` is
the name of the log: several logs may live on one cluster. Everything that may be wrong with an address is reported
before anything is connected.
"""

from __future__ import annotations

import re
import ssl
from importlib.util import find_spec
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from mainspring.errors import MissingExtra, SettingError

DEFAULT_NAME: Final = "mainspring"
DEFAULT_PORT: Final = 4222
DEFAULT_PATIENCE: Final = 10.0  # seconds a commit waits for a server: an election takes some, a person's patience ends
MOST_PATIENCE: Final = 60.0  # a second try must come within the server's memory for duplicates, which is twice that
MOST_REPLICAS: Final = 5  # JetStream's own limit

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_OPTIONS = "replicas, patience, tls_ca, tls_cert, tls_key, creds, nkey, token, monitor"


class NatsAddress(msgspec.Struct, frozen=True):
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


def parse(text: str) -> NatsAddress:
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
    address = NatsAddress(
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
        raise _bad(f"{text!r} is not a host and port") from error
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


# -- what the client needs to sign in: passwords, keys, certificates. Files are looked at before anything connects.

CONNECT_SECONDS: Final = 2.0
PING_SECONDS: Final = 2  # a server that does not answer two pings (a stopped one, a cut cable) is left for another


def client_options(address: NatsAddress) -> dict[str, Any]:
    options: dict[str, Any] = {
        "allow_reconnect": False,
        "max_reconnect_attempts": 1,
        "reconnect_time_wait": 0,
        "connect_timeout": CONNECT_SECONDS,
        "ping_interval": PING_SECONDS,
        "max_outstanding_pings": 2,
        "user": address.user,
        "password": address.password,
        "token": address.token,
    }
    if address.creds or address.nkey:
        if find_spec("nkeys") is None:  # nats-py signs with it
            raise MissingExtra(
                "signing in with creds or nkey needs the package nkeys", remedy="pip install 'mainspring[nats]'"
            )
        for file in filter(None, (address.creds, address.nkey)):
            _readable(file)
        options["user_credentials"] = address.creds
        options["nkeys_seed"] = address.nkey
    if address.tls:
        options["tls"] = _tls(address)
    return options


def _readable(file: str) -> None:
    try:
        with open(file, "rb"):
            pass
    except OSError as error:
        raise SettingError(
            f"a file of the engine's address cannot be read: {error}", remedy="check creds and nkey"
        ) from error


def _tls(address: NatsAddress) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=address.tls_ca)
        if address.tls_cert:
            context.load_cert_chain(address.tls_cert, address.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise SettingError(
            f"a TLS file of the engine's address cannot be read: {error}", remedy="check tls_ca, tls_cert and tls_key"
        ) from error
    return context
