"""The reference of the Python names is what the code says, and the code says something about every one of them."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import pytest
from tools.reference_pages import MODULES, document_of, methods_of, pages, public_names

import mainspring
from tests.support.paths import ROOT

FOLDER = ROOT / "docs" / "reference"
PAGES = pages()


def names() -> Iterator[tuple[str, str, Any]]:
    for module in MODULES:
        for name in public_names(module):
            yield module, name, getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("path", PAGES)
def test_the_page_is_the_one_the_code_makes(path: str) -> None:
    same = (FOLDER / path).exists() and (FOLDER / path).read_text(encoding="utf-8") == PAGES[path]
    assert same, "the page is old; run: python -m tools.reference_pages docs/reference"


def test_no_page_is_left_over() -> None:
    assert {f"python/{page.name}" for page in (FOLDER / "python").iterdir()} == PAGES.keys() - {"python.md"}


def test_every_public_class_and_function_says_what_it_is() -> None:
    silent = [
        f"{module}.{name}"
        for module, name, value in names()
        if (inspect.isclass(value) and _is_made_up(vars(value).get("__doc__"), name))
        or (inspect.isroutine(value) and not value.__doc__)
    ]
    assert silent == []


def _is_made_up(text: str | None, name: str) -> bool:
    """A dataclass without a docstring gets its signature as one."""
    return not text or text.startswith(f"{name}(")


def test_every_public_method_says_what_a_caller_may_rely_on() -> None:
    silent = {
        f"{value.__module__}.{name}.{method}"
        for module, name, value in names()
        if inspect.isclass(value)
        for method, function in methods_of(value)
        if not document_of(module, value, method, function)
    }
    assert silent == set()


def test_links_between_the_pages_lead_somewhere() -> None:
    for path, text in PAGES.items():
        for target, anchor in re.findall(r"\]\(([\w./-]+\.md)(?:#([\w-]+))?\)", text):
            found = (FOLDER / path).parent / target
            assert found.exists(), (path, target)
            headings = re.findall(r"^#+ (.*)$", found.read_text(encoding="utf-8"), re.MULTILINE)
            assert not anchor or anchor in {heading.lower() for heading in headings}, (path, target, anchor)


def test_the_package_says_its_version() -> None:
    assert mainspring.__version__ == version("mainspring")
