"""`MODULE:NAME` on the command line: each way it can be wrong is told as what it is, by every command alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainspring.errors import BootError
from mainspring.import_path import find_object
from tests.support.in_process import mainspring

BROKEN = {
    "raises_at_import": "\nraise RuntimeError('not today')\n",
    "ends_at_import": "import sys\nsys.exit(0)\n",
    "lacks_a_package": "import no_such_package_anywhere\n",
    "is_no_python": "x = [\n",
    "lacks_the_name": "class Holder:\n    inner = 5\n",
}


@pytest.fixture
def programs(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(elsewhere))
    for name, text in BROKEN.items():
        (elsewhere / f"{name}.py").write_text(text)
    return elsewhere


@pytest.mark.parametrize(
    ("place", "said", "remedy"),
    [
        ("raises_at_import:app", "RuntimeError: not today (raises_at_import.py, line 2)", "whole traceback"),
        ("ends_at_import:app", "SystemExit: 0 (ends_at_import.py, line 2)", "whole traceback"),
        ("lacks_a_package:app", "'no_such_package_anywhere', which 'lacks_a_package' imports", "install it"),
        ("is_no_python:app", "SyntaxError: '[' was never closed (is_no_python.py, line 1)", "whole traceback"),
        ("lacks_the_name:app", "module 'lacks_the_name' has no 'app'", "variable"),
        ("no_such_module_here:app", "there is no module 'no_such_module_here'", "folder of the program"),
        ("no_such_module_here.sub:app", "there is no module 'no_such_module_here'", "folder of the program"),
        ("lacks_the_name", "'lacks_the_name' does not say where", "MODULE:"),
        (":app", "':app' does not say where", "MODULE:"),
        ("./lacks_the_name.py:app", "is not the name of a module", "in the program's folder"),
        ("lacks_the_name.py:app", "is not the name of a module", "MODULE:"),
        ("..lacks_the_name:app", "is not the name of a module", "MODULE:"),
    ],
)
@pytest.mark.parametrize("command", [("run",), ("worker",), ("schemas", "register", "t")], ids=lambda each: each[0])
@pytest.mark.usefixtures("programs")
def test_what_is_wrong_is_two_lines(command: tuple[str, ...], place: str, said: str, remedy: str) -> None:
    if command[0] == "schemas" and ":" not in place:
        said, remedy = "cannot read lacks_the_name", "file"  # without a colon it is a file's name
    first, second = mainspring(*command, place, code=1).stderr.splitlines()
    assert said in first
    assert remedy in second


@pytest.mark.usefixtures("programs")
def test_a_name_may_have_dots() -> None:
    assert find_object("lacks_the_name:Holder.inner") == 5
    with pytest.raises(BootError, match=r"has no 'Holder.outer'"):
        find_object("lacks_the_name:Holder.outer")
