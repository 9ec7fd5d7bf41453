"""What checking costs: publishing with tokens and lists, and with a schema, against publishing without.

Prints one JSON object. A node of ours fsyncs before every acknowledgement, always; client and node share the machine.
Rounds of all kinds alternate, so that what else the machine does falls on all of them. `throughput` compares events per
second as the client sees them, in each kind's best round: other work can only slow a round down. `node_cpu` compares
the processor time of the node over all rounds. Both are against the node without checks; 1.0 is no cost.

- `access`: an allow and a deny list on the topic, asked for a named agent. `check_us` is one question, in this process;
  a request asks once, however many events it brings.
- `tokens`: the same, with a token's scopes besides, and with the headers that say who published: about 70 bytes stored
  with each event of 215, which is nearly all of the cost.
- `schema`: the same events, checked against a JSON Schema.
"""

from __future__ import annotations

import json
import secrets
import time
import urllib.request
from contextlib import AsyncExitStack
from typing import Any

from bench.harness import options, report
from bench.peers import servers as peers
from bench.raw_client import BusClient
from mainspring.bus import Access, Caller
from mainspring.bus.access.tokens import Scopes, new_token
from mainspring.bus.topics.config import TopicConfig, topic_from
from mainspring.loop import MonotonicClock, run

ROUNDS = 16
EVENTS = 20_000
UNDER_WAY = 4_096
ORDER = {
    "id": "o-0123456789",
    "customer": "c-17",
    "currency": "EUR",
    "total": 99.5,
    "lines": [{"sku": 1, "qty": 2, "price": 10.5}, {"sku": 2, "qty": 1, "price": 78.5}],
    "note": "leave it with the neighbour at number four",
}
SCHEMA = {
    "type": "object",
    "required": ["id", "customer", "lines", "total"],
    "properties": {
        "id": {"type": "string", "minLength": 1, "maxLength": 64},
        "customer": {"type": "string"},
        "currency": {"enum": ["EUR", "USD", "GBP"]},
        "total": {"type": "number", "minimum": 0},
        "lines": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["sku", "qty"],
                "properties": {
                    "sku": {"type": "integer"},
                    "qty": {"type": "integer", "minimum": 1},
                    "price": {"type": "number"},
                },
            },
        },
        "note": {"type": "string", "maxLength": 200},
    },
}
LISTS = {"allow": ["alice", "team.**"], "deny": ["mallory", "**.intern"]}
PAYLOAD = json.dumps(ORDER).encode()


def ask(port: int, path: str, body: Any, token: str | None = None) -> None:
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        answer.read()


async def publish(node: peers.Node, topic: str, path: str, count: int) -> tuple[float, float]:
    """Events per second, and the node's processor seconds per event."""
    client = await BusClient.connect(node.port, path=path)
    before, start = sum(node.cpu_s()), time.perf_counter()
    for n in range(count):
        client.publish(topic, PAYLOAD)
        if n % 64 == 63:
            await client.room(UNDER_WAY)
    await client.drained()
    taken, spent = time.perf_counter() - start, sum(node.cpu_s()) - before
    client.close()
    return count / taken, spent / count


async def measure() -> dict[str, Any]:
    text, token = new_token("alice", ["publish:orders.**"], secrets.token_bytes(32))
    admin, admin_token = new_token("root", ["admin"], secrets.token_bytes(32))
    others = [new_token(f"agent-{n}", ["subscribe:**"], secrets.token_bytes(32))[1] for n in range(20)]
    lines = ",".join(each.line() for each in (token, admin_token, *others))
    async with AsyncExitStack() as stack:
        plain = await stack.enter_async_context(peers.node())
        listed = await stack.enter_async_context(peers.node())
        guarded = await stack.enter_async_context(peers.node(MAINSPRING_TOKENS=lines))
        checked = await stack.enter_async_context(peers.node())
        ask(listed.port, "/topics", {"topic": "orders.eu", "publishACL": LISTS})
        ask(guarded.port, "/topics", {"topic": "orders.eu", "publishACL": LISTS}, admin)
        ask(checked.port, "/schemas/orders.eu", {"schema": SCHEMA})
        kinds = {
            "plain": (plain, "/"),
            "access": (listed, "/?agent_id=alice"),
            "tokens": (guarded, f"/?token={text}"),
            "schema": (checked, "/"),
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
        for number in range(ROUNDS + 1):
            order = list(kinds) if number % 2 else list(reversed(kinds))
            for name in order:
                node, path = kinds[name]
                result = await publish(node, "orders.eu", path, EVENTS if number else EVENTS // 10)
                if number:  # the first round warms up
                    found[name].append(result)
    return _told(found)


def check_us(rounds: int = 20_000) -> float:
    """One question to lists and scopes, in this process: asked once per request, however many events it brings."""
    config = topic_from({"topic": "orders.eu", "publishACL": LISTS})
    access = Access(MonotonicClock(), lambda topic: TopicConfig(topic=topic))
    caller = Caller("alice", sid="s", scopes=Scopes(["publish:orders.**"]))
    best = float("inf")
    for _ in range(5):
        start = time.process_time()
        for _ in range(rounds):
            access.check_now(config, "publish", caller)
        best = min(best, time.process_time() - start)
    return round(best / rounds * 1e6, 2)


def _told(found: dict[str, list[tuple[float, float]]]) -> dict[str, Any]:
    best = {name: max(rate for rate, _ in results) for name, results in found.items()}
    spent = {name: sum(cpu for _, cpu in results) / len(results) for name, results in found.items()}
    told: dict[str, Any] = {
        "publish_per_s": round(best["plain"]),
        "node_cpu_us_per_event": {name: round(value * 1e6, 2) for name, value in spent.items()},
    }
    for name, goal in (("access", 0.95), ("tokens", 0.95), ("schema", 0.8)):
        told[name] = {
            **({"check_us": check_us()} if name == "access" else {}),
            "throughput": round(best[name] / best["plain"], 3),
            "node_cpu": round(spent[name] / spent["plain"], 3),
            "goal_throughput": goal,
        }
    return told


def main() -> None:
    global ROUNDS
    if options(__doc__).quick:
        ROUNDS = 1
    report(
        run(measure()),
        payload_bytes=len(PAYLOAD),
        events=EVENTS,
        rounds=ROUNDS,
        fsync="before every acknowledgement",
    )


if __name__ == "__main__":
    main()
