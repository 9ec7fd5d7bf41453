"""`mainspring schemas` against a node in a process of its own, before and after it was killed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.serving import Serving, clean_environment

ORDER = {"type": "object", "required": ["sku"], "properties": {"sku": {"type": "integer"}}}
TYPES = """
import msgspec
class Order(msgspec.Struct):
    sku: int
    note: str = ""
class Strict(msgspec.Struct):
    sku: int
    total: float
"""


def schemas(node: Serving, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mainspring", "schemas", *arguments],
        capture_output=True,
        text=True,
        input=stdin,
        env=clean_environment({"BUS_URL": f"ws://127.0.0.1:{node.port}"}),
        cwd=node.folder,
        timeout=60,
    )


def test_schemas_from_files_types_and_standard_input_outlive_the_node(tmp_path: Path) -> None:
    (tmp_path / "order.json").write_text(json.dumps(ORDER))
    (tmp_path / "shop.py").write_text(TYPES)
    with Serving(folder=tmp_path, engine="sqlite") as node:
        first = schemas(node, "register", "orders", "order.json", "--json")
        assert json.loads(first.stdout)["version"] == 1, first.stderr
        second = schemas(node, "register", "orders", "shop:Order")
        assert "version 2" in second.stdout, second.stderr
        checked = schemas(node, "check", "orders", "shop:Strict")
        assert checked.returncode == 1
        assert "not backward compatible with version 2" in checked.stdout
        assert "/total" in checked.stdout
        refused = schemas(node, "register", "orders", "shop:Strict")
        assert (refused.returncode, "/total" in refused.stderr) == (1, True)
        node.kill()
    with Serving(folder=tmp_path, engine="sqlite") as node:
        listed = schemas(node, "list")
        assert "orders" in listed.stdout
        assert "backward" in listed.stdout
        shown = schemas(node, "show", "orders", "--version", "1")
        assert json.loads(shown.stdout) == ORDER
        fits = schemas(node, "check", "orders", "--payload", "-", stdin='{"sku": 1}')
        assert (fits.returncode, fits.stdout.strip()) == (0, "fits version 2")
        unfit = schemas(node, "check", "orders", "--payload", "-", "--json", stdin='{"sku": "x"}')
        assert (unfit.returncode, json.loads(unfit.stdout)["path"]) == (1, "/sku")


def test_what_cannot_be_read_is_said_in_two_lines(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{")
    with Serving(folder=tmp_path) as node:
        for source, said in (("missing.json", "cannot read"), ("broken.json", "not JSON"), ("nobody:Order", "type")):
            done = schemas(node, "register", "orders", source)
            assert done.returncode == 1
            assert said in done.stderr
            assert "Traceback" not in done.stderr
        assert schemas(node, "check", "orders").returncode == 2
        unknown = schemas(node, "show", "orders")
        assert (unknown.returncode, "has no schema" in unknown.stderr) == (1, True)
