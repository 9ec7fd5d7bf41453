"""`mainspring new NAME`: a small project to begin with: one program that uses every part, and tests that pass."""

from __future__ import annotations

import keyword
import sys
from pathlib import Path
from string import Template
from typing import Annotated, Final

import typer

from mainspring.errors import MainspringError

PROGRAM: Final = '''"""$name: a small shop. Every part of Mainspring in one file.

    mainspring serve $module:app
    mainspring send command Order.Place '{"id": "o-1", "customer": "ada", "cents": 1200}'
    mainspring tail orders
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mainspring import App, Context, Effect, Event, Fail, Perform, Publish, Sleep, resume

app = App("$module")


@dataclass
class Order:
    id: str
    customer: str
    cents: int


@dataclass
class Placed:
    id: str


# A command: asked from outside, answered once. The event is on disk before the answer leaves.
@app.command("Order.Place")
async def place(order: Order, ctx: Context) -> Placed:
    """Place an order."""
    if order.cents <= 0:
        raise Fail(422, "an order costs something", remedy="give cents above 0")
    await ctx.publish("orders", order, key=order.customer)
    return Placed(order.id)


# A consumer: each event of a topic, at least once. Its run begins in the same commit as the acknowledgement.
@app.consumer("orders", group="billing", max_attempts=5)
async def bill(event: Event[Order]) -> None:
    event.start_run(checkout, event.payload, id=f"checkout-{event.payload.id}")


# An effect, its handler, and a run: after a crash it goes on where it was. A handler that was cut short is asked again,
# with the same ctx.key; give that to the bank.
class Charge(Effect[str]):
    customer: str
    cents: int


@app.handles(Charge)
async def charge(effect: Charge) -> Any:
    return resume(f"receipt: {effect.customer} paid {effect.cents / 100:.2f}")


@app.run
async def checkout(order: Order, perform: Perform) -> str:
    receipt: str = await perform(Charge(order.customer, order.cents))
    await perform(Sleep(hours=24))
    await perform(Publish("reviews", {"order": order.id, "text": "How was it?"}))
    return receipt


# A beat: deterministic bookkeeping. Each event becomes a signal exactly once.
app.beats_from("orders")


@app.enzyme("/topics/orders", match="prefix")
def count(signal: str, target: str | None, stage: Any) -> None:
    order = stage.read(signal)["payload"]
    stage.add(f"/customers/{order['customer']}", order["cents"])


# A schedule: its next time is in the log, so that a restart neither loses nor doubles a call.
@app.cron("0 3 * * *")
async def nightly() -> None:
    app.state.nights = getattr(app.state, "nights", 0) + 1
'''

TESTS: Final = '''"""The program on virtual time: a day takes milliseconds, and a crash is one line."""

import pytest
from $module import app

from mainspring import Fail
from mainspring.testing import simulate

ORDER = {"id": "o-1", "customer": "ada", "cents": 1200}


async def test_an_order_is_billed_and_reviewed_a_day_later():
    async with simulate(app) as world:
        assert await world.command("Order.Place", ORDER) == {"id": "o-1"}
        outcome = await world.outcome("checkout-o-1")
        assert outcome.value == "receipt: ada paid 12.00"
        assert world.events("reviews").payloads == [{"order": "o-1", "text": "How was it?"}]


async def test_a_crash_in_between_changes_nothing():
    async with simulate(app) as world:
        await world.command("Order.Place", ORDER)
        await world.advance("12h")
        await world.crash_and_restart()
        outcome = await world.outcome("checkout-o-1")
        assert outcome.value == "receipt: ada paid 12.00"
        assert len(world.events("reviews")) == 1


async def test_every_order_is_counted_exactly_once():
    async with simulate(app) as world:
        for n in range(3):
            await world.command("Order.Place", {**ORDER, "id": f"o-{n}"})
            await world.crash_and_restart()
        await world.advance("1s")
        assert world.read("/customers/ada") == 3600


async def test_an_order_that_costs_nothing_is_refused():
    async with simulate(app) as world:
        with pytest.raises(Fail) as refused:
            await world.command("Order.Place", {**ORDER, "cents": 0})
        assert refused.value.code == 422
        assert world.events("orders") == []
'''

README: Final = """# $name

```sh
mainspring serve $module:app --reload     # http://127.0.0.1:7070 shows what it does
mainspring send command Order.Place '{"id": "o-1", "customer": "ada", "cents": 1200}'
mainspring tail orders
pytest                                 # needs: pip install pytest pytest-asyncio
```

`$module.py` is the whole program; `test_$module.py` runs it on virtual time. What must survive is in `data/`.
"""

PYTEST: Final = "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\npythonpath = .\n"
REQUIREMENTS: Final = "mainspring[fast]\npytest\npytest-asyncio\n"
IGNORE: Final = "data/\n.venv/\n__pycache__/\n.pytest_cache/\n"


class CannotMakeProject(MainspringError):
    """The project cannot be written there, or not under this name."""

    code = "cannot_make_project"


def files_of(name: str) -> dict[str, str]:
    """The files of a new project, by path."""
    module = name.replace("-", "_").lower()
    if not module.isidentifier() or keyword.iskeyword(module):
        raise CannotMakeProject(f"{name!r} cannot name a program", remedy="use letters, digits and _, like shop")
    if module in sys.stdlib_module_names or module in ("test", "mainspring", "pytest"):
        raise CannotMakeProject(
            f"{name!r} cannot name a program: Python would take {module}.py for another module",
            remedy="choose a name that is not taken, like shop",
        )
    templates = {
        f"{module}.py": PROGRAM,
        f"test_{module}.py": TESTS,
        "README.md": README,
        "pytest.ini": PYTEST,
        "requirements.txt": REQUIREMENTS,
        ".gitignore": IGNORE,
    }
    return {path: Template(text).substitute(name=name, module=module) for path, text in templates.items()}


def new(
    name: Annotated[str, typer.Argument(help="The project's name; its folder and its module are called so.")],
    into: Annotated[Path | None, typer.Option(help="Where to make the folder.  [default: here]")] = None,
) -> None:
    """Write a small project to begin with. One program that uses every part, and its tests."""
    files = files_of(name)
    folder = (into or Path()) / name
    try:
        if folder.exists() and any(folder.iterdir()):
            raise CannotMakeProject(f"there is something in {folder} already", remedy="choose another name or place")
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            (folder / path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise CannotMakeProject(
            f"cannot write to {folder}: {error.strerror}", remedy="choose another place with --into"
        ) from None
    module = next(iter(files)).removesuffix(".py")
    typer.echo(f"made {folder}: {', '.join(files)}")
    typer.echo(f"  cd {folder} && mainspring serve {module}:app --reload")
    typer.echo("  pytest     # needs: pip install pytest pytest-asyncio")
