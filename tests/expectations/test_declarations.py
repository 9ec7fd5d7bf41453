"""What a FastAPI user expects of a mistake in a declaration: it is refused when the program is read, with its place."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mainspring import App, Context, Event
from mainspring.errors import BootError, MainspringError
from mainspring.import_path import find_object
from mainspring.runs import Effect, EffectContext, Perform
from mainspring.testing import simulate


class Session:
    """Says nothing about its members, so it has no JSON form."""


class Charge(Effect[Session]):
    cents: int


class Refund(Effect[int]):
    session: Session


def _command(app: App) -> None:
    @app.command("Order.Place")
    async def place(data: Session, ctx: Context) -> None: ...


def _query(app: App) -> None:
    @app.query("Order.Count")
    async def count(data: dict[str, int], ctx: Context) -> list[Session]:
        return []


def _event(app: App) -> None:
    @app.on("Order.Placed")
    def placed(data: dict[str, Session], ctx: Context) -> None: ...


def _consumer(app: App) -> None:
    @app.consumer("orders")
    async def bill(event: Event[Session]) -> None: ...


def _task(app: App) -> None:
    @app.task
    async def pack(order: Session) -> None: ...


def _run(app: App) -> None:
    @app.run
    async def checkout(session: Session, perform: Perform) -> None: ...


def _answer(app: App) -> None:
    @app.handles(Charge)
    async def charge(effect: Charge, ctx: EffectContext) -> Session:
        return Session()


def _effect(app: App) -> None:
    @app.handles(Refund)
    async def refund(effect: Refund, ctx: EffectContext) -> int:
        return 1


def _schema(app: App) -> None:
    app.schema("orders")(Session)


@pytest.mark.parametrize("declare", [_command, _query, _event, _consumer, _task, _run, _answer, _effect, _schema])
def test_a_type_without_a_json_form_is_refused_where_it_is_declared(declare: Callable[[App], Any]) -> None:
    with pytest.raises(MainspringError, match="Session has no JSON form"):
        declare(App("shop"))


def program(mistake: str) -> str:
    return f"from mainspring import App, Event\n\napp = App('shop')\n\n\n{mistake}\n"


MISTAKES = {
    "a command without ctx": '@app.command("Order.Place")\nasync def place(data): ...',
    "a bad cron line": '@app.cron("every day")\ndef nightly(): ...',
    "a bad interval": '@app.every("soon")\ndef often(): ...',
    "no message type": '@app.query("orders")\nasync def orders(data, ctx): ...',
    "no event": '@app.consumer("orders")\nasync def bill(): ...',
    "no perform": "@app.run\nasync def checkout(order: int): ...",
    "an unknown topic setting": 'app.topic("orders", partitions=-1)',
    "a type without a JSON form": '@app.consumer("orders")\nasync def bill(event: Event[object]): ...',
    "a program that cannot be in names": 'other = App("my shop")',
    "no concurrency": '@app.command("Order.Place", concurrency=0)\nasync def place(data, ctx): ...',
    "no policy": '@app.command("Order.Place", restart=5)\nasync def place(data, ctx): ...',
    "no topic": '@app.consumer("my orders")\nasync def bill(event): ...',
    "no group": '@app.consumer("orders", group="my group")\nasync def bill(event): ...',
    "no place to begin": '@app.consumer("orders", from_="newest")\nasync def bill(event): ...',
    "a wait without a batch": '@app.consumer("orders", wait="1s")\nasync def bill(event): ...',
    "a result without a JSON form": "@app.task\ndef make() -> object: ...",
    "a hook with arguments": "@app.on_start\ndef connect(url, user): ...",
    "an enzyme without a stage": '@app.enzyme("/orders")\ndef count(signal): ...',
    "an unknown match": '@app.enzyme("/orders", match="some")\ndef count(signal, target, stage): ...',
    "no topic for beats": 'app.beats_from("my orders")',
    "no topic for a schema": 'app.schema("my orders")({"type": "object"})',
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_file_and_line_of_the_program_are_named(
    mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"shop_{list(MISTAKES).index(mistake)}"
    (tmp_path / f"{name}.py").write_text(program(MISTAKES[mistake]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(BootError) as refused:
        find_object(f"{name}:app")
    assert f"({name}.py, line 6)" in refused.value.message


@pytest.mark.process
def test_serve_names_them(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(program(MISTAKES["a bad cron line"]))
    done = subprocess.run(
        [sys.executable, "-m", "mainspring", "serve", "shop:app"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode != 0
    assert "shop.py, line 6)" in " ".join(done.stderr.split()), done.stderr


async def test_two_handlers_of_one_message_are_refused_at_boot_with_both_places() -> None:
    app = App("shop")

    @app.command("Order.Place")
    async def place(data: Any, ctx: Context) -> None: ...

    @app.command("Order.Place")
    async def place_again(data: Any, ctx: Context) -> None: ...

    with pytest.raises(BootError, match=r"Duplicate handler for command:Order\.Place") as refused:
        async with simulate(app):
            pass
    for function in (place, place_again):
        assert f"{__file__}:{function.__code__.co_firstlineno}" in str(refused.value)


def test_two_runs_of_one_name_are_refused_with_both_places() -> None:
    app = App("shop")

    @app.run
    async def checkout(perform: Perform) -> None: ...

    first = checkout.__code__.co_firstlineno
    with pytest.raises(MainspringError, match="there is a run of this name") as refused:

        @app.run(name="checkout")
        async def check_out(perform: Perform) -> None: ...

    assert f"{__file__}:{first}" in refused.value.message
    assert f"@app.run above check_out ({__file__}:" in refused.value.message


def test_handlers_that_disagree_are_named_with_their_lines() -> None:
    app = App("shop")

    @app.command("Order.Place", durable=True)
    async def place(data: Any, ctx: Context) -> None: ...

    @app.command("Order.Cancel", durable=False)
    async def cancel(data: Any, ctx: Context) -> None: ...

    with pytest.raises(MainspringError, match="disagree about durable") as caught:
        app.capabilities()
    for function in (place, cancel):
        assert f"{__file__}:{function.__code__.co_firstlineno}" in caught.value.message


def test_an_option_that_does_not_exist_is_refused_and_the_likely_one_is_named() -> None:
    app = App("shop")
    with pytest.raises(MainspringError, match="there is no option 'max_attempt'; did you mean 'max_attempts'"):
        app.consumer("orders", max_attempt=1)(_nothing)  # type: ignore[call-arg]
    with pytest.raises(MainspringError, match="there is no option 'again'"):
        app.every("1h", again=True)(_nothing)  # type: ignore[call-arg]


async def _nothing(event: Event[Any]) -> None: ...
