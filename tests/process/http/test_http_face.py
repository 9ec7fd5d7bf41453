"""What holds for every route: problem documents, methods, origins, and a description that cannot drift."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from aiohttp import web
from openapi_spec_validator import OpenAPIV31SpecValidator

from mainspring.errors import STATUS_OF_CODE, MainspringError
from mainspring.server import http
from tests.support.http_site import Site, serve
from tests.support.paths import ROOT

# --- errors


@pytest.mark.parametrize("path", ["/nothing", "/topics/", "//topics", "/healthz/x", "/dlq/t/redrive/x/"])
async def test_an_unknown_path_is_a_problem_document(site: Site, path: str) -> None:
    missing = await site.get(path)
    assert missing.status == 404
    assert missing.problem["code"] in ("not_found", "unknown_topic", "unknown_group")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/topics", "GET, HEAD, OPTIONS, POST"),
        ("PUT", "/topics/t/events", "GET, HEAD, OPTIONS, POST"),
        ("POST", "/topics/t/offsets", "GET, HEAD, OPTIONS"),
        ("POST", "/healthz", "GET, HEAD, OPTIONS"),
        ("GET", "/groups/t/g/seek", "OPTIONS, POST"),
    ],
)
async def test_a_wrong_method_is_405_with_the_right_ones(site: Site, method: str, path: str, allowed: str) -> None:
    refused = await site.request(method, path)
    assert (refused.status, refused.problem["code"]) == (405, "method_not_allowed")
    assert set(refused.headers["Allow"].split(", ")) >= set(allowed.split(", "))
    told = await site.request("OPTIONS", path)
    assert (told.status, told.headers["Allow"]) == (204, allowed)


async def test_head_is_get_without_a_body(site: Site) -> None:
    await site.publish("t", 1)
    for path in (
        "/topics",
        "/topics/t",
        "/topics/t/events",
        "/topics/t/stream",
        "/healthz",
        "/metrics",
        "/openapi.json",
    ):
        head = await asyncio.wait_for(site.request("HEAD", path), 10)
        assert (head.status, head.body) == (200, b"")
    assert (await site.request("HEAD", "/topics/nobody")).status == 404


async def test_an_accident_tells_nobody_its_text(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> Any:
        raise RuntimeError("somebody's payload")

    site.bus.stats = fail  # type: ignore[method-assign]
    failed = await site.get("/stats")
    assert (failed.status, failed.problem["code"]) == (500, "internal")
    assert b"somebody" not in failed.body
    assert "somebody's payload" in caplog.text


@pytest.mark.parametrize(("code", "status"), STATUS_OF_CODE.items())
async def test_a_code_has_one_status(site: Site, code: str, status: int) -> None:
    def fail() -> Any:
        raise MainspringError("it went wrong.", remedy="Do better.", code=code)

    site.bus.stats = fail  # type: ignore[method-assign]
    failed = await site.get("/stats")
    assert (failed.status, failed.problem["code"], failed.problem["remedy"]) == (status, code, "Do better.")
    assert ("Retry-After" in failed.headers) == (status in (429, 503))


async def test_ready_until_the_node_drains(site: Site) -> None:
    assert (await site.get("/readyz")).json == {"status": "ready"}
    await site.bus.drain()
    refused = await site.get("/readyz")
    assert (refused.status, refused.problem["code"]) == (503, "unavailable")
    assert (await site.get("/healthz")).json == {"status": "ok"}
    assert (await site.post("/topics/t/events", {"payload": 1})).status == 503


# --- origins


async def raw(site: Site, head: str) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(head.replace("\n", "\r\n").encode() + b"\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
    status = int((await reader.readline()).split()[1])
    writer.close()
    return status


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "DELETE"])
@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "", "http://[", "file://"])
async def test_a_foreign_origin_is_403_whatever_it_asks(site: Site, method: str, origin: str) -> None:
    refused = await site.request(method, "/topics", headers={"Origin": origin})
    assert refused.status == 403
    assert refused.problem["remedy"]
    assert "Access-Control-Allow-Origin" not in refused.headers


async def test_a_foreign_page_cannot_publish_read_or_stream(site: Site) -> None:
    foreign = {"Origin": "http://evil.example"}
    assert (await site.post("/topics/t/events", {"payload": 1}, headers=foreign)).status == 403
    assert await site.nothing_stored("t")
    await site.publish("t", 1)
    assert (await site.get("/topics/t/events", headers=foreign)).status == 403
    assert (await site.get("/topics/t/stream", headers=foreign)).status == 403


async def test_the_nodes_own_origin_and_none_are_let_in(site: Site) -> None:
    own = f"127.0.0.1:{site.port}"
    for origin in (f"http://{own}", f"https://{own}"):
        assert (await site.post("/topics/t/events", {"payload": 1}, headers={"Origin": origin})).status == 201
    assert (await site.post("/topics/t/events", {"payload": 1})).status == 201
    assert (
        await raw(
            site,
            f"GET {site.prefix}/topics HTTP/1.1\nHost: localhost:{site.port}\nOrigin: http://localhost:{site.port}",
        )
        == 200
    )
    assert (
        await raw(site, f"GET {site.prefix}/topics HTTP/1.1\nHost: localhost:{site.port}\nOrigin: http://{own}") == 403
    )


async def test_a_name_that_was_made_to_point_here_is_refused(site: Site) -> None:
    assert await raw(site, f"GET {site.prefix}/topics HTTP/1.1\nHost: evil.example") == 403
    assert await raw(site, f"GET {site.prefix}/topics HTTP/1.1\nHost: evil.example\nOrigin: http://evil.example") == 403
    for host in ("127.0.0.1", "localhost:99", "[::1]:7070", "app.localhost"):
        assert await raw(site, f"GET {site.prefix}/topics HTTP/1.1\nHost: {host}") == 200


async def test_an_allowed_origin_may_ask_and_read() -> None:
    async with serve(origins=("https://app.example", " http://other.example/ ")) as site:
        origin = {"Origin": "https://app.example"}
        answer = await site.post("/topics/t/events", {"payload": 1}, headers=origin)
        assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (201, "https://app.example")
        assert "Origin" in answer.headers["Vary"]
        refused = await site.post("/topics/t/events", "nonsense", headers=origin)
        assert (refused.status, refused.headers["Access-Control-Allow-Origin"]) == (400, "https://app.example")
        asked = await site.request(
            "OPTIONS",
            "/topics/t/events",
            headers={
                **origin,
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "content-type",
            },
        )
        assert asked.status == 204
        assert "POST" in asked.headers["Access-Control-Allow-Methods"]
        assert asked.headers["Access-Control-Allow-Headers"] == "content-type"
        assert (await site.get("/topics", headers={"Origin": "http://other.example"})).status == 200
        assert (await site.get("/topics", headers={"Origin": "http://app.example"})).status == 403


async def test_a_node_with_tokens_says_itself_who_asks() -> None:
    async def by_token(request: web.Request) -> str | None:
        return {"Bearer one": "alice"}.get(request.headers.get("Authorization", ""))

    async with serve(identify=by_token) as site:
        await site.post("/topics", {"topic": "t", "publishACL": ["alice"]})
        claimed = await site.post("/topics/t/events?agent_id=alice", {"payload": 1}, headers={"X-Agent-Id": "alice"})
        assert claimed.status == 403
        known = await site.post("/topics/t/events", {"payload": 1}, headers={"Authorization": "Bearer one"})
        assert known.status == 201


# --- the description


async def test_the_openapi_document_is_valid(site: Site) -> None:
    document = (await site.get("/openapi.json")).json
    assert document["openapi"].startswith("3.1")
    OpenAPIV31SpecValidator(document).validate()


async def test_every_route_is_described_and_every_description_is_a_route(site: Site) -> None:
    routes = {
        (route.method.lower(), re.sub(r":[^{}]*?(?=\}(/|$))", "", route.resource.canonical))
        for route in site.runner.app.router.routes()
        if route.resource is not None and route.method not in ("HEAD", "OPTIONS")
    }
    described = {(method, path) for path, item in json.loads(http.openapi_text())["paths"].items() for method in item}
    assert routes == described


def test_every_operation_has_a_name_of_its_own_and_says_how_it_fails() -> None:
    operations = [operation for item in http.openapi_document()["paths"].values() for operation in item.values()]
    names = [operation["operationId"] for operation in operations]
    assert len(names) == len(set(names))
    for operation in operations:
        assert operation["summary"]
        assert {"403", "500"} <= operation["responses"].keys()


async def test_answers_fit_their_description(site: Site) -> None:
    from openapi_schema_validator import OAS31Validator

    await site.post("/topics", {"topic": "t", "partitions": 2})
    await site.publish("t", {"n": 1}, key="k", headers={"h": "v"})
    document = (await site.get("/openapi.json")).json
    asked = {
        "/topics": "/topics",
        "/topics/{topic}": "/topics/t",
        "/topics/{topic}/offsets": "/topics/t/offsets",
        "/topics/{topic}/events": "/topics/t/events",
        "/groups": "/groups",
        "/dlq": "/dlq",
        "/schedules": "/schedules",
        "/stats": "/stats",
        "/healthz": "/healthz",
        "/readyz": "/readyz",
    }
    for template, path in asked.items():
        answer = await site.get(path)
        schema = document["paths"][template]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        OAS31Validator({**schema, "components": document["components"]}).validate(answer.json)
    refused = await site.get("/topics/nobody")
    problem = {"$ref": "#/components/schemas/ProblemDocument", "components": document["components"]}
    OAS31Validator(problem).validate(refused.json)


def test_the_reference_page_names_every_operation() -> None:
    page = (ROOT / "docs" / "reference" / "http.md").read_text(encoding="utf-8")
    for operation in http.OPERATIONS:
        assert f"`{operation.method} {operation.path}`" in page


# --- metrics


async def test_metrics_are_what_the_stats_say(site: Site) -> None:
    await site.publish("t", 1, 2, 3)
    await site.publish('od/d:"x"'.replace('"', ""), 1)
    answer = await site.get("/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain; version=")
    text = answer.body.decode()
    assert "# TYPE mainspring_events_published_total counter" in text
    assert 'mainspring_events_published_total{topic="t"} 3.0' in text
    assert 'mainspring_events_published_total{topic="od/d:x"} 1.0' in text
    stats = (await site.get("/stats")).json
    assert stats["byTopic"]["t"]["pub"] == 3
    assert stats["published"] >= 4


async def test_metrics_come_as_openmetrics_when_asked(site: Site) -> None:
    answer = await site.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
    assert answer.body.endswith(b"# EOF\n")
