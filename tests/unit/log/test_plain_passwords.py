"""A password for the log's engine that crosses a network in plain text is warned of, as NATS and libpq users expect."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainspring.log.engines.registry import exposed_hosts, open_engine

EXPOSED = {
    "nats://user:secret@far.example:4222/log": ["far.example"],
    "nats://secret@far.example": ["far.example"],
    "nats://far.example?token=secret": ["far.example"],
    "nats://user:secret@127.0.0.1,far.example,[2001:db8::1]:4222": ["far.example", "2001:db8::1"],
    "mongodb://user:secret@far.example/log": ["far.example"],
    "mongodb://user:secret@far.example/log?tls=false": ["far.example"],
    "mongodb+srv://user:secret@far.example/log?tls=false": ["far.example"],
    "postgresql://user:secret@far.example/db": ["far.example"],
    "postgres://user:secret@10.0.0.7:5432/db?sslmode=prefer": ["10.0.0.7"],
    "postgresql://user:secret@far.example/db?sslmode=disable": ["far.example"],
    "postgresql:///db?host=far.example&password=secret": ["far.example"],
}
FINE = [
    "sqlite",
    "memory",
    "nats://far.example",
    "nats://far.example?creds=/a/file",
    "nats://user:secret@localhost",
    "nats://user:secret@far.example?tls_ca=/a/file",
    "tls://user:secret@far.example",
    "mongodb://user:secret@[::1]:27017/log",
    "mongodb://far.example/log",
    "mongodb://user:secret@far.example/log?tls=true",
    "mongodb://user:secret@far.example/log?ssl=true",
    "mongodb+srv://user:secret@far.example/log",
    "postgresql://user@far.example/db",
    "postgresql://user:secret@127.0.0.1/db",
    "postgresql://user:secret@%2Fvar%2Frun/db",
    "postgresql:///db?host=/var/run&password=secret",
    "postgresql://user:secret@far.example/db?sslmode=require",
    "postgresql://user:secret@far.example/db?sslmode=verify-full",
]


@pytest.mark.parametrize("address", EXPOSED)
def test_who_sees_the_password_of_an_address(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGSSLMODE", raising=False)
    assert exposed_hosts(address) == EXPOSED[address]


@pytest.mark.parametrize("address", FINE)
def test_nobody_else_sees_it(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGSSLMODE", raising=False)
    assert exposed_hosts(address) == []


@pytest.mark.parametrize(
    ("address", "remedy"),
    [
        ("nats://user:secret@far.example", "tls://"),
        ("mongodb://user:secret@far.example/log", "tls=true"),
        ("postgresql://user:secret@far.example/db", "sslmode=verify-full"),
    ],
)
def test_the_node_says_it_without_the_password(
    address: str, remedy: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    open_engine(address, tmp_path)
    (line,) = caplog.messages
    assert "far.example" in line
    assert remedy in line
    assert "secret" not in line
