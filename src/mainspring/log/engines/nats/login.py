"""What the client needs to get in: passwords, keys, certificates. Files are looked at before anything connects."""

from __future__ import annotations

import ssl
from importlib.util import find_spec
from typing import Any, Final

from mainspring.errors import MissingExtra, SettingError
from mainspring.log.engines.nats.address import Address

CONNECT_SECONDS: Final = 2.0
PING_SECONDS: Final = 2  # a server that does not answer two pings (a stopped one, a cut cable) is left for another


def client_options(address: Address) -> dict[str, Any]:
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


def _tls(address: Address) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=address.tls_ca)
        if address.tls_cert:
            context.load_cert_chain(address.tls_cert, address.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise SettingError(
            f"a TLS file of the engine's address cannot be read: {error}", remedy="check tls_ca, tls_cert and tls_key"
        ) from error
    return context
