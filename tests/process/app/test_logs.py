"""Log lines say which message they are about, whoever writes them."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

from mainspring.cli.support.messages import Wire
from tests.support.serving import serving

APP = """
import logging
from mainspring import App, Event

app = App("talk")
logger = logging.getLogger("talk")

@app.command("Order.Place")
async def place(data: dict, ctx) -> dict:
    logger.info("placing", extra={"fields": {"cents": data["cents"]}})
    await ctx.publish("orders", data)
    logger.info("placed")
    if data["cents"] < 0:
        raise ValueError("negative")
    return {}

@app.consumer("orders", max_attempts=1)
async def bill(event: Event[dict]) -> None:
    logger.info("billing %s", event.id)
    raise ValueError("no card")

@app.on_start
def begin() -> None:
    logger.info("starting")
"""


def lines_of(folder: Path, *arguments: str) -> str:
    (folder / "talk.py").write_text(APP)
    with serving(folder, "talk:app", *arguments) as node:
        with Wire(node.kernel_socket) as wire:
            wire.ask("command", "Order.Place", {"cents": 1}, id="m-1", correlation="c-1")
            wire.ask("command", "Order.Place", {"cents": -1}, id="m-2")
        node.signal(signal.SIGTERM)
        assert node.wait() == 0
        return node.errors()


def test_json_lines_carry_id_correlation_and_fields(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [json.loads(line) for line in lines_of(tmp_path, "--log-format", "json").splitlines()]
    ours = [line for line in lines if line["logger"] == "talk"]
    by_text = {(line["message"], line.get("message_id")): line for line in ours}
    assert by_text[("placing", "m-1")]["correlation"] == "c-1"
    assert by_text[("placing", "m-1")]["cents"] == 1
    assert "correlation" not in by_text[("placed", "m-2")]
    assert "message_id" not in by_text[("starting", None)]
    billed = [line for line in ours if line["message"].startswith("billing")]
    assert all(line["message"] == f"billing {line['message_id']}" for line in billed)
    assert billed[0]["correlation"] == "c-1"
    (failed,) = [line for line in lines if "m-2" in line["message"] and "exception" in line]
    assert "ValueError: negative" in failed["exception"]
    refused = [line for line in lines if line["logger"] == "mainspring.app"]
    assert {line["topic"] for line in refused} == {"orders"}


def test_readable_lines_end_with_the_message(tmp_path: Path) -> None:
    lines = lines_of(tmp_path).splitlines()
    assert any(line.endswith("INFO    talk: placed [m-1 of c-1]") for line in lines)
    assert any(line.endswith("INFO    talk: placed [m-2]") for line in lines)
    assert any(line.endswith("INFO    talk: starting") for line in lines)
