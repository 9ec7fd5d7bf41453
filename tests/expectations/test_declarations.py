"""What a FastAPI user expects of a mistake in a declaration: it is refused when the program is read, with its place."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mainspring import App, Context, Event
from mainspring.errors import MainspringError
from mainspring.runs import Effect, EffectContext, Perform


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


MISTAKES = {
    "a command without ctx": '@app.command("Order.Place")\nasync def place(data): ...',
    "a bad cron line": '@app.cron("every day")\ndef nightly(): ...',
    "a bad interval": '@app.every("soon")\ndef often(): ...',
    "no message type": '@app.query("orders")\nasync def orders(data, ctx): ...',
    "no event": '@app.consumer("orders")\nasync def bill(): ...',
    "no perform": "@app.run\nasync def checkout(order: int): ...",
    "an unknown topic setting": 'app.topic("orders", partitions=-1)',
    "a type without a JSON form": '@app.consumer("orders")\nasync def bill(event: Event[object]): ...',
}


@pytest.mark.process
@pytest.mark.parametrize("mistake", MISTAKES)
def test_serve_names_the_file_and_line_of_the_program(mistake: str, tmp_path: Path) -> None:
    program = f"from mainspring import App, Event\n\napp = App('shop')\n\n\n{MISTAKES[mistake]}\n"
    (tmp_path / "shop.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "-m", "mainspring", "serve", "shop:app"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode != 0
    assert "shop.py, line 6)" in " ".join(done.stderr.split()), done.stderr


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
