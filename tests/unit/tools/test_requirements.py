"""What the project is built from: locked versions have hashes, bounds are bounds, the bill is whole."""

from __future__ import annotations

import re
from importlib.metadata import distributions
from pathlib import Path

import pytest
from tools.readme_for_index import absolute
from tools.requirements import BUILDING, bill, bounds, canonical, locked, project

from tests.support.paths import ROOT

LOCKS = sorted((ROOT / "requirements").glob("*.txt"))


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_every_locked_version_has_hashes_and_no_line_an_address(lock: Path) -> None:
    text = lock.read_text()
    entries = [entry for entry in re.split(r"\n(?=\S)", text.strip()) if entry]
    assert len(entries) == len(locked(lock))
    for entry in entries:
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[^\s;]+( \\\n    --hash=sha256:[0-9a-f]{64})+", entry), entry[:80]
    assert "//" not in text


def test_every_dependency_has_a_lower_bound_that_the_lock_is_not_below() -> None:
    chosen = {canonical(name): version for lock in LOCKS for name, version in locked(lock)}
    for name, bound in bounds():
        assert _numbers(chosen[canonical(name)]) >= _numbers(bound), name


def test_the_lowest_versions_are_installed_of_every_extra() -> None:
    (extras,) = re.findall(r'"\.\[([a-z]+(?:,[a-z]+)+)\]"', (ROOT / "Makefile").read_text())
    assert set(extras.split(",")) == project()["optional-dependencies"].keys()


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def test_the_bill_names_what_a_node_is_made_of() -> None:
    names = [name for name, _ in locked(ROOT / "requirements" / "runtime.txt") if canonical(name) not in BUILDING]
    installed = {canonical(each.name) for each in distributions()}
    if not {canonical(name) for name in names} <= installed:
        pytest.skip("the locked versions are not installed here")  # as where the lowest ones are
    document = bill(names)
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    found = {each["name"]: each for each in document["components"]}
    needed = {re.split(r"[<>=\[]", each)[0] for each in project()["dependencies"]}
    assert {canonical(each) for each in needed} <= found.keys()
    refs = {each["bom-ref"] for each in document["components"]} | {document["metadata"]["component"]["bom-ref"]}
    assert {each["ref"] for each in document["dependencies"]} == refs
    aiohttp = next(each for each in document["dependencies"] if each["ref"].startswith("pkg:pypi/aiohttp@"))
    assert any(each.startswith("pkg:pypi/multidict@") for each in aiohttp["dependsOn"])


def test_links_of_the_readme_are_addresses_where_an_index_shows_it() -> None:
    text = "[a](docs/a.md) ![b](docs/b.png) [c](https://c.example) [d](#d)"
    assert absolute(text, "https://x.example/m", "1.0") == (
        "[a](https://x.example/m/blob/v1.0/docs/a.md) ![b](https://x.example/m/raw/v1.0/docs/b.png) "
        "[c](https://c.example) [d](#d)"
    )
    readme = absolute((ROOT / "README.md").read_text(), project()["urls"]["Source"], project()["version"])
    assert not re.findall(r"\]\((?!https://|#)", readme)
