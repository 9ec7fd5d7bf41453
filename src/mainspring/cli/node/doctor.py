"""`mainspring doctor`: is this installation sound, and this data directory?

Each check is one line: what was looked at and what was found, with the remedy where something is wrong. Nothing is
changed, and a node may serve meanwhile. Exit code 1 when something is wrong; a warning alone is 0.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import resource
import shutil
import socket
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
import typer

from mainspring.cli.node.settings import ConfigOption
from mainspring.cli.support.output import JsonOption, say, say_json
from mainspring.errors import MainspringError, plain_lines
from mainspring.log import check as check_log
from mainspring.log import engine_factory, log_file
from mainspring.settings import Settings, load_all, without_secrets

_NEEDED: Final = ("aiohttp", "msgspec", "prometheus-client", "rich", "typer", "uuid-utils")
_OPTIONAL: Final = {"uvloop": "faster; pip install 'mainspring[fast]'", "wasmtime": "for guests in WebAssembly"}
_LEAST_SQLITE: Final = (3, 35)  # RETURNING
_LEAST_FREE_BYTES: Final = 256 << 20
_LEAST_FILES: Final = 1_024
_BIG_LOG_BYTES: Final = 2 << 30  # reading every byte of more takes minutes: `mainspring log check` shows progress


class Finding(msgspec.Struct):
    """One line of the report."""

    check: str
    state: Literal["ok", "warning", "wrong"]
    found: str
    remedy: str = ""


def doctor(
    program: Annotated[
        str | None, typer.Argument(metavar="MODULE:APP", help="Also check that this program can be loaded.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="The data directory.  [default: ./data]")] = None,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Check the installation, the settings and a data directory. Exit code 1 when something is wrong."""
    findings = list(examine(program, data, config))
    if as_json:
        for each in findings:
            say_json(msgspec.to_builtins(each))
    else:
        for each in findings:
            say(f"{each.state:8} {each.check}: {plain_lines(each.found)}")
            if each.remedy:
                say(f"         {each.remedy}")
    if any(each.state == "wrong" for each in findings):
        raise typer.Exit(1)


def examine(program: str | None, data: Path | None, config: Path | None) -> Iterator[Finding]:
    """Every finding, in the order of the checks."""
    yield from _installation()
    try:
        settings = load_all(config, data=data).settings
    except MainspringError as error:
        yield Finding("settings", "wrong", error.message, error.remedy)
        return
    yield Finding("settings", "ok", f"engine {without_secrets(settings.engine)}, data in {settings.data}")
    yield from _data(settings)
    yield _port(settings)
    if program is not None:
        yield _checked("program", lambda: _load(program))


def _installation() -> Iterator[Finding]:
    yield Finding("python", "ok", sys.version.split()[0])
    for name in ("mainspring", *_NEEDED):
        yield _package(name, f"pip install {name}")
    for name, why in _OPTIONAL.items():
        there = importlib.util.find_spec(name) is not None
        yield Finding(name, "ok", version(name) if there else f"not installed ({why})")
    if sqlite3.sqlite_version_info >= _LEAST_SQLITE:
        yield Finding("sqlite", "ok", sqlite3.sqlite_version)
    else:
        yield Finding("sqlite", "wrong", sqlite3.sqlite_version, "use a Python with SQLite 3.35 or newer")
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files == resource.RLIM_INFINITY or files >= _LEAST_FILES:
        yield Finding("open files", "ok", str(files))
    else:
        remedy = f"ulimit -n {_LEAST_FILES} or more: each connection needs one"
        yield Finding("open files", "warning", str(files), remedy)


def _data(settings: Settings) -> Iterator[Finding]:
    if settings.engine == "memory":
        yield Finding("data", "warning", "engine memory", "what is in memory is gone with the process")
        return
    if settings.engine != "sqlite":
        shown = without_secrets(settings.engine)
        driver = engine_factory(settings.engine)  # needed with that engine only
        yield _package(driver.package, driver.install)
        yield Finding("data", "ok", f"on a server: {shown}", "mainspring engine check says what it promises")
        return
    folder = Path(settings.data)
    yield _folder(folder)
    log = log_file(folder)
    if not log.exists():
        yield Finding("log", "ok", "none yet; the first node makes it")
        return
    yield _owner(log)
    if log.stat().st_size > _BIG_LOG_BYTES:
        yield Finding("log", "ok", f"{log.stat().st_size >> 20} MB; not read", "mainspring log check reads all of it")
        return
    yield _checked("log", lambda: _sound(log))


def _package(name: str, install: str) -> Finding:
    try:
        return Finding(name, "ok", version(name))
    except PackageNotFoundError:
        return Finding(name, "wrong", "not installed", install)


def _folder(folder: Path) -> Finding:
    there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        return Finding("data", "wrong", f"{there} cannot be written: {error.strerror}", "give the node the right to")
    free = shutil.disk_usage(there).free
    if free < _LEAST_FREE_BYTES:
        return Finding("data", "warning", f"{free >> 20} MB free in {there}", "a full disk stops every write")
    return Finding("data", "ok", f"{folder} can be written, {free >> 20} MB free")


def _owner(log: Path) -> Finding:
    """Who holds the log, found out by asking for a shared lock; nothing is written."""
    lock = log.with_name(log.name + ".lock")
    if lock.exists():
        with lock.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = file.read(32).decode(errors="replace").strip()
                return Finding("owner", "ok", f"process {owner} serves it now")
            except OSError as error:
                return Finding("owner", "wrong", f"cannot be locked: {error.strerror}", "use a local file system")
    return Finding("owner", "ok", "no node serves it now")


def _sound(log: Path) -> Finding:
    report = check_log(log)
    if report.problems:
        worst = report.problems[0]
        found = f"{len(report.problems)} problems, first: {worst.where}: {worst.detail}"
        return Finding("log", "wrong", found, "mainspring log check")
    return Finding("log", "ok", "every checksum and offset fits")


def _port(settings: Settings) -> Finding:
    with socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host, settings.port))
        except OSError as error:
            text = f"{settings.host}:{settings.port}: {error.strerror or os.strerror(error.errno or 0)}"
            return Finding("port", "warning", text, "a node that serves now uses it; else choose another with --port")
    return Finding("port", "ok", f"{settings.host}:{settings.port} is free")


def _load(program: str) -> Finding:
    from mainspring.node import load_program

    app = load_program(program)
    assert app is not None
    found = f"{len(app.handlers)} handlers, {len(app.consumers)} consumers, {len(app.programs)} programs"
    app.capabilities()
    return Finding("program", "ok", f"{program}: {found}")


def _checked(check: str, look: Callable[[], Finding]) -> Finding:
    """What a check finds; what it raises is a finding, too."""
    try:
        return look()
    except MainspringError as error:
        return Finding(check, "wrong", error.message, error.remedy)
    except Exception as error:
        return Finding(check, "wrong", f"{type(error).__name__}: {error}", "see the traceback by running it")
