"""What a user may write after `--engine nats://`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mainspring.errors import SettingError
from mainspring.log.engines.nats.address import NatsAddress, parse


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("nats://localhost", NatsAddress(("localhost:4222",))),
        ("nats://h:1/shop", NatsAddress(("h:1",), "shop")),
        ("nats://h1,h2:5,h3/", NatsAddress(("h1:4222", "h2:5", "h3:4222"))),
        ("nats://[::1]:7,[fe80::2]/x", NatsAddress(("[::1]:7", "[fe80::2]:4222"), "x")),
        ("nats://ann:p%40ss@h", NatsAddress(("h:4222",), user="ann", password="p@ss")),
        ("nats://t0ken@h1,h2", NatsAddress(("h1:4222", "h2:4222"), token="t0ken")),
        ("tls://h/x", NatsAddress(("h:4222",), "x", tls=True)),
        ("nats://h?tls_ca=/ca.pem", NatsAddress(("h:4222",), tls=True, tls_ca="/ca.pem")),
        (
            "nats://h?replicas=3&patience=2.5&monitor=http://a:8222,http://b:8222/",
            NatsAddress(("h:4222",), replicas=3, patience=2.5, monitor=("http://a:8222", "http://b:8222")),
        ),
        ("nats://h?creds=/me.creds&nkey=/seed", NatsAddress(("h:4222",), creds="/me.creds", nkey="/seed")),
    ],
)
def test_addresses(text: str, address: NatsAddress) -> None:
    assert parse(text) == address


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("http://h", "begins with nats://"),
        ("nats://", "no server"),
        ("nats://h:port", "not a host and port"),
        ("nats://h/a.b", "letters, digits"),
        ("nats://h/a/b", "letters, digits"),
        ("nats://h?replicas=many", "replicas is a number"),
        ("nats://h?replicas=6", "replicas is a number"),
        ("nats://h?replicas=1.5", "replicas is a number"),
        ("nats://h?patience=0", "patience is a number"),
        ("nats://h?patience=3600", "patience is a number"),
        ("nats://h?replica=3", "'replica' is unknown"),
        ("nats://h?junk", "name=value"),
        ("nats://h?tls_cert=/c.pem", "go together"),
    ],
)
def test_what_does_not_fit_is_said_without_showing_passwords(text: str, why: str) -> None:
    with pytest.raises(SettingError, match=why):
        parse(text)
    with pytest.raises(SettingError) as refusal:
        parse(text.replace("nats://", "nats://ann:hunter2@").replace("http://", "http://ann:hunter2@"))
    assert "hunter2" not in str(refusal.value)


def test_without_the_package_the_extra_is_named(tmp_path: Path) -> None:
    """In a process that cannot import it."""
    program = (
        "import sys; sys.modules['nats'] = None\n"
        "from mainspring.log import open_engine\n"
        "try:\n    open_engine('nats://h', '.')\n"
        "except Exception as error:\n    print(type(error).__name__, error)\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert said.stdout.startswith("MissingExtra")
    assert "mainspring[nats]" in said.stdout
