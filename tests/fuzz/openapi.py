"""`python -m tests.fuzz.openapi SCHEMATHESIS [OPTIONS]`: what schemathesis makes of the node's own OpenAPI document.

It sends what the document allows and what it does not, and makes all of its checks. No answer may be a server's error,
and every answer is one that the document describes: its status, its type and its members. What fits is taken, and what
does not fit is refused; `schemathesis.toml` says where no schema can tell. Half of the names it sends are those of what
is there.
Streams are left out: they do not end. Further options go to `schemathesis run`; `--seed` repeats a run.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.support.victim import Innocent, Victim, attacked

EXAMPLES = 100  # of each operation and phase
REFUSALS = Path(__file__).parent / "schemathesis.toml"

PROGRAM = """
from mainspring import App, Event, Perform, WaitSignal

app = App("shop")

@app.consumer("orders", group="billing", max_attempts=1)
def bill(order: Event[dict]) -> None:
    raise ValueError("no")

@app.task(max_attempts=1)
def mail(n: int) -> int:
    return 10 // n

@app.command("Order.Place", durable=True)
def place(data: dict, ctx) -> dict:
    return data

@app.run
async def fulfil(order: str, perform: Perform) -> str:
    return await perform(WaitSignal("paid"))
"""

NAMES = {
    "path.topic": ("orders", "tasks.shop.mail", "system.bus.audit", "plain"),
    "path.group": ("billing", "shop"),
    "path.schedule": ("hourly", "daily"),
    "path.task": ("shop.mail", "mail"),
    "path.call": ("call-0", "call-1"),
    "path.partition": (0,),
    "path.offset": (1, 2, 3),
    "path.version": (1,),
    "body.topic": ("orders", "plain", "new"),
    "body.name": ("hourly", "daily"),
    "body.type": ("Order.Place", "Run.Start", "Run.List", "Run.Count", "Bus.Read", "Bus.Tasks", "Memory.Set"),
    "body.kind": ("query", "command"),
}


def config() -> str:
    """What schemathesis reads in its folder: names of what is there, for half of what it sends."""
    lines: list[str] = []
    for number, values in enumerate(NAMES.values()):
        lines += [f"[dictionaries.d{number}]", f"values = {list(values)!r}"]
    lines.append("[parameters]")
    lines += [f'"{name}" = {{ dictionary = "d{number}", probability = 0.5 }}' for number, name in enumerate(NAMES)]
    return "\n".join([*lines, REFUSALS.read_text()])


def fill(node: Victim) -> None:
    """Something of everything: topics, dead letters, a schema, schedules, calls of a task, a run."""

    def post(path: str, body: object) -> None:
        answer = node.ask("POST", path, body)
        assert answer.status in (200, 201), (path, answer.body)

    post("/topics", {"topic": "plain", "partitions": 2})
    post("/schemas/plain", {"schema": {"type": "object"}})
    for number in range(3):
        post("/topics/orders/events", {"payload": {"n": number}})
        post("/topics/plain/events", {"payload": {"n": number}})
        post("/topics/tasks.shop.mail/events", {"payload": {"args": [number]}, "id": f"call-{number}"})
    for name, every in (("hourly", 3_600_000), ("daily", 86_400_000)):
        post("/schedules", {"name": name, "topic": "plain", "payload": {}, "every": every})
    started = {"program": "fulfil", "args": ["pen"], "id": "r"}
    post("/messages", {"kind": "command", "type": "Run.Start", "data": started})


def main(arguments: Sequence[str]) -> int:
    """The exit code: not 0 where something failed."""
    program, *options = arguments
    with tempfile.TemporaryDirectory(prefix="ms-") as name:
        folder = Path(name)
        (folder / "shop.py").write_text(PROGRAM)
        (folder / "schemathesis.toml").write_text(config())
        with attacked(folder, "shop:app", tokens=False) as node:
            fill(node)
            innocent = Innocent(node)
            innocent.start()
            command = [
                *(str(Path(program).absolute()), "run", f"http://127.0.0.1:{node.port}/openapi.json"),
                *("--checks", "all", "--max-examples", str(EXAMPLES)),
                *("--phases", "examples,coverage,fuzzing", "--exclude-path-regex", "stream$"),
                *("--request-timeout", "30", *options),
            ]
            code = subprocess.run(command, check=False, cwd=folder).returncode
            innocent.stop()
            print(f"innocent client: {innocent.answers} answers, the longest after {innocent.longest_s:.2f} s")
            return code or int(bool(innocent.failures))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
