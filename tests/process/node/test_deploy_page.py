"""What the page about deploying says is safe as it stands, and works: the unit, the container file, the proxy.

The unit is read by systemd where it is installed; its command and the container's are started with their users'
environment and umask, on a root file system that cannot be written where this machine can make one. The proxy is
started, and the node is reached through it.
"""

from __future__ import annotations

import configparser
import http.client
import json
import os
import re
import shlex
import shutil
import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme

from tests.support.paths import ROOT
from tests.support.serving import PATIENCE_S, Serving, clean_environment

PAGE = (ROOT / "docs" / "how-to" / "deploy.md").read_text()
APP = "from mainspring import App\n\napp = App('shop')\n"

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")  # where Debian puts it


def fence(kind: str) -> str:
    (found,) = re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


def token_for(file: Path) -> str:
    """A new token of an admin, whose line is in the file."""
    options = [sys.executable, "-m", "mainspring", "token", "new", "--agent", "ops", "--scope", "admin", "--file"]
    done = subprocess.run([*options, str(file)], env=clean_environment(), capture_output=True, text=True, check=True)
    return re.findall(r"\bms_[\w-]{43}", done.stdout)[0]


def unit() -> dict[str, str]:
    found = configparser.ConfigParser(strict=True, interpolation=None)
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read_string(fence("ini"))
    return dict(found["Service"])


def test_the_unit_gives_the_process_nothing_it_does_not_need() -> None:
    service = unit()
    assert service["User"] not in ("", "root")
    assert service["UMask"] == "0077"
    assert service["StateDirectoryMode"] == "0700"
    assert "MAINSPRING_TOKENS_FILE=" in service["Environment"]
    assert not re.search(r"ms_|MAINSPRING_TOKENS=|BUS_TOKEN", service["Environment"])
    assert (service["NoNewPrivileges"], service["ProtectSystem"], service["CapabilityBoundingSet"]) == (
        "yes",
        "strict",
        "",
    )
    for name in (
        "NoNewPrivileges",
        "ProtectHome",
        "PrivateTmp",
        "PrivateDevices",
        "ProtectKernelModules",
        "RestrictSUIDSGID",
    ):
        assert service[name] == "yes"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_reads_the_unit(tmp_path: Path) -> None:
    text = fence("ini").replace(unit()["ExecStart"].split()[0], sys.executable)
    file = tmp_path / "shop.service"
    file.write_text(text.replace("User=shop", "User=daemon").replace("/srv/shop", "/"))
    done = subprocess.run(["systemd-analyze", "verify", str(file)], capture_output=True, text=True, check=False)
    assert "shop.service" not in done.stderr, done.stderr


@pytest.mark.parametrize("source", ["unit", "container"])
def test_the_command_starts_with_tokens_and_leaves_nothing_to_others(source: str, tmp_path: Path) -> None:
    folder, data, tokens = tmp_path / "srv", tmp_path / "data", tmp_path / "tokens"
    folder.mkdir()
    data.mkdir(mode=0o700)
    (folder / "shop.py").write_text(APP)
    token = token_for(tokens)
    command, environment = from_unit() if source == "unit" else from_container()
    given = {**environment, "MAINSPRING_DATA": str(data), "MAINSPRING_TOKENS_FILE": str(tokens), "BUS_PORT": "0"}
    given |= {"MAINSPRING_KERNEL_SOCKET": str(data / "k"), "MAINSPRING_LOOP_SOCKET": str(data / "l")}
    with started(command, folder, data, given) as port:
        assert status(port) == 401
        assert status(port, token) == 200
    files = [data, *data.rglob("*")]
    assert any(each.name.startswith("log.sqlite3") for each in files)
    assert [each for each in files if stat.S_IMODE(each.stat().st_mode) & 0o077] == []
    assert sorted(each.name for each in folder.iterdir() if each.name != "__pycache__") == ["shop.py"]


def from_unit() -> tuple[list[str], dict[str, str]]:
    service = unit()
    command = shlex.split(service["ExecStart"])
    assert command[0].endswith("/mainspring")
    return command[1:], dict(each.split("=", 1) for each in service["Environment"].split())


def from_container() -> tuple[list[str], dict[str, str]]:
    text = fence("dockerfile").replace("\\\n", " ")
    lines = [line.split(None, 1) for line in text.splitlines() if line.strip()]
    said: dict[str, str] = dict(lines)  # type: ignore[arg-type]
    assert said["USER"].isdigit(), "a number: Kubernetes can see that it is not root"
    assert int(said["USER"]) > 0
    assert "--require-hashes" in text
    assert [name for name, _ in lines].index("USER") > [name for name, _ in lines].index("COPY")
    command = json.loads(said["CMD"])
    assert command[0] == "mainspring"
    run = PAGE[PAGE.index("docker run") :]
    assert all(each in run for each in ("--read-only", "--cap-drop ALL", "no-new-privileges", "127.0.0.1:7070:7070"))
    return command[1:], dict(each.split("=", 1) for each in said["ENV"].split())


@contextmanager
def started(command: list[str], folder: Path, data: Path, environment: dict[str, str]) -> Iterator[int]:
    """The node's port. Only its data can be written, where this machine can see to that."""
    prefix: list[str] = []
    sealed = f'mount --bind {data} {data} && mount -o remount,bind,ro / && exec "$@"'
    if os.geteuid() == 0 and shutil.which("unshare"):
        probe = subprocess.run(["unshare", "-m", "sh", "-c", sealed, "sh", "true"], capture_output=True, check=False)
        prefix = ["unshare", "-m", "sh", "-c", sealed, "sh"] if probe.returncode == 0 else []
    node = subprocess.Popen(
        [*prefix, sys.executable, "-m", "mainspring", *command],
        cwd=folder,
        env=clean_environment(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        umask=0o077,
    )
    try:
        assert node.stdout is not None
        assert node.stderr is not None
        line = node.stdout.readline()
        assert line, node.stderr.read()
        (address,) = (each for each in json.loads(line)["data"]["adapters"] if each.startswith("http:"))
        yield int(address.rsplit(":", 1)[1])
    finally:
        node.terminate()
        node.communicate(timeout=PATIENCE_S)
    assert node.returncode == 0


def status(port: int, token: str = "") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.request("GET", "/topics", headers={"Authorization": f"Bearer {token}"} if token else {})
    found = connection.getresponse().status
    connection.close()
    return found


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
def test_the_node_is_reached_through_the_proxy_with_a_token_alone(tmp_path: Path) -> None:
    token = token_for(tmp_path / "tokens")
    authority = trustme.CA()
    issued = authority.issue_cert("shop.example")
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "shop.pem"))
    issued.private_key_pem.write_to_path(str(tmp_path / "shop.key"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    name = re.search(r"MAINSPRING_ALLOWED_ORIGINS=(\S+)", PAGE)
    assert name is not None
    env = {"MAINSPRING_ALLOWED_ORIGINS": name[1], "MAINSPRING_TOKENS_FILE": str(tmp_path / "tokens")}
    with Serving(folder=tmp_path, env=env) as node, proxy(tmp_path, port, node.port):
        context = ssl.create_default_context()
        authority.configure_trust(context)
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        upgrade["Sec-WebSocket-Key"] = "AAAAAAAAAAAAAAAAAAAAAA=="
        bearer = {"Authorization": f"Bearer {token}"}
        assert asked(port, context, "/topics") == 401
        assert asked(port, context, "/topics", bearer) == 200
        assert asked(port, context, "/", upgrade) == 401
        assert asked(port, context, "/", {**upgrade, **bearer}) == 101
        assert asked(port, context, "/", {**upgrade, **bearer, "Origin": "https://evil.example"}) == 403


@contextmanager
def proxy(folder: Path, port: int, upstream: int) -> Iterator[None]:
    """nginx with the page's configuration, at other paths and ports."""
    server = fence("nginx").replace("listen 443", f"listen 127.0.0.1:{port}").replace(":7070", f":{upstream}")
    server = server.replace("/etc/ssl/", f"{folder}/")
    places = "".join(
        f"{each}_temp_path {folder}/{each};\n" for each in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = folder / "nginx.conf"
    config.write_text(
        f"daemon off; pid {folder}/pid; error_log {folder}/error.log;\nevents {{}}\nhttp {{\n{places}{server}}}\n"
    )
    tested = subprocess.run([str(NGINX), "-t", "-c", str(config)], capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stderr
    process = subprocess.Popen([str(NGINX), "-c", str(config)], stderr=subprocess.DEVNULL)
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), PATIENCE_S).close()
                break
            except ConnectionRefusedError:
                assert process.poll() is None
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def asked(port: int, context: ssl.SSLContext, path: str, headers: dict[str, str] | None = None) -> int:
    """The status of a GET of https://shop.example through the proxy."""
    with (
        socket.create_connection(("127.0.0.1", port), PATIENCE_S) as raw,
        context.wrap_socket(raw, server_hostname="shop.example") as secure,
    ):
        lines = [f"GET {path} HTTP/1.1", "Host: shop.example"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        secure.sendall("\r\n".join([*lines, "", ""]).encode())
        return int(secure.recv(64).split()[1])
