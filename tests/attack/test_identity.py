"""Who is let in: a place for tokens means that tokens are needed; certificates say who, too.

What an operator of NATS or Temporal expects: protection that is configured is never silently absent, also while the
list is empty; mutual TLS is an identity with the same rights as any other.
"""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme

from mainspring.node import BootFailure
from tests.support.access import Served, make_token, served

ROOT, ROOT_TOKEN = make_token("root", "admin")


async def comes(node: Served, path: str, status: int, token: str | None = None) -> None:
    """The file is looked at every second."""
    for _ in range(1_500):
        if (await node.get(path, token)).status == status:
            return
        await asyncio.sleep(0.02)
    pytest.fail(f"{path} was never {status}")


@pytest.mark.parametrize("text", ["", "# nobody yet\n\n"])
async def test_a_tokens_file_without_tokens_lets_nobody_in(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "tokens"
    file.write_text(text)
    async with served(tokens_file=str(file)) as node:
        assert (await node.get("/topics")).status == 401
        assert (await node.post("/topics/t/events", {"payload": 1})).status == 401
        with pytest.raises(aiohttp.WSServerHandshakeError):
            async with node.socket():
                pass
        assert "nobody can connect" in caplog.text
        file.write_text(ROOT_TOKEN.line())
        await comes(node, "/topics", 200, ROOT)
        file.write_text(text)
        await comes(node, "/topics", 401, ROOT)
        assert (await node.get("/topics")).status == 401, "taking the last token away opens nothing"
        assert (await node.get("/healthz")).status == 200


async def test_a_blank_token_in_the_settings_lets_nobody_in() -> None:
    async with served(tokens=(" ",)) as node:
        assert (await node.get("/topics")).status == 401


class Authority:
    """Certificates for one test: of the node, and of clients."""

    def __init__(self, folder: Path, *lines: str) -> None:
        self.folder, self.servers, self.clients = folder, trustme.CA(), trustme.CA()
        own = self.servers.issue_cert("127.0.0.1")
        (folder / "cert.pem").write_bytes(b"".join(part.bytes() for part in own.cert_chain_pems))
        own.private_key_pem.write_to_path(folder / "key.pem")
        self.clients.cert_pem.write_to_path(folder / "clients.pem")
        self.tokens = folder / "tokens"
        self.tokens.write_text("\n".join((ROOT_TOKEN.line(), *lines)))

    @property
    def settings(self) -> dict[str, Any]:
        names = {"tls_cert": "cert.pem", "tls_key": "key.pem", "tls_client_ca": "clients.pem", "tokens_file": "tokens"}
        return {name: str(self.folder / file) for name, file in names.items()}

    def client(self, *names: str, signer: trustme.CA | None = None, common_name: str | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self.servers.configure_trust(context)
        if names or common_name:
            (signer or self.clients).issue_cert(*names, common_name=common_name).configure_cert(context)
        return context


async def status(node: Served, context: ssl.SSLContext, path: str = "/topics", **options: Any) -> tuple[int, Any]:
    connector = aiohttp.TCPConnector(ssl=context)
    async with aiohttp.ClientSession(connector=connector) as session, session.get(node.url + path, **options) as answer:
        return answer.status, await answer.json()


async def test_a_certificate_is_an_identity_with_scopes(tmp_path: Path) -> None:
    authority = Authority(
        tmp_path,
        "billing cert:DNS=billing.example.com subscribe:orders.paid",
        "ops cert:CN=operations admin",
        "mail cert:EMAIL=shop@example.com publish:orders.*",
    )
    async with served(ssl=authority.client(), **authority.settings) as node:
        billing = authority.client("Billing.Example.com")
        _, shown = await status(node, billing, "/node")
        assert shown["you"] == {
            "agent": "billing",
            "proven": True,
            "admin": False,
            "scopes": ["subscribe:orders.paid"],
        }
        assert (await status(node, billing, "/topics/payroll"))[0] == 403
        _, shown = await status(node, authority.client("x.example", common_name="operations"), "/node")
        assert (shown["you"]["agent"], shown["you"]["admin"]) == ("ops", True)
        _, shown = await status(node, authority.client("shop@example.com"), "/node")
        assert shown["you"]["agent"] == "mail"
        by_token = {"Authorization": f"Bearer {ROOT}"}
        _, shown = await status(node, billing, "/node", headers=by_token)
        assert shown["you"]["agent"] == "root", "who sends a token is who the token says"
        assert (await node.get("/topics", ROOT)).status == 200, "a token does without a certificate"


async def test_other_certificates_are_nobody(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "billing cert:DNS=billing.example.com subscribe:orders.paid")
    async with served(ssl=authority.client(), **authority.settings) as node:
        assert (await status(node, authority.client("other.example.com")))[0] == 401
        assert (await node.get("/topics")).status == 401, "none at all"
        forged = authority.client("billing.example.com", signer=trustme.CA())
        with pytest.raises(aiohttp.ClientError):
            await status(node, forged)
        assert (await status(node, authority.client("billing.example.com")))[0] == 200
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=authority.client("billing.example.com"))
            ) as session,
            session.ws_connect(node.url) as socket,
        ):
            authority.tokens.write_text(ROOT_TOKEN.line())
            closed = await socket.receive(timeout=30)
            assert (closed.type, closed.data) == (aiohttp.WSMsgType.CLOSE, 1008), "its line is gone"


async def test_certificates_of_clients_without_tls_stop_the_boot(tmp_path: Path) -> None:
    with pytest.raises(BootFailure) as refused:
        async with served(tls_client_ca=str(tmp_path / "clients.pem")):
            pass
    assert "tls_cert" in refused.value.remedy
