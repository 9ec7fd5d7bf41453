"""Types reach the user: a program is right where it is right and wrong where it is wrong, for mypy and for pyright.

The last test asks pyright whether every public name has a type that all checkers understand the same way.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT

HERE = Path(__file__).resolve().parent
RIGHT, WRONG = HERE / "right_program.py", HERE / "wrong_program.py"

# The blocking client's verbs are made from the async client's by one function, not written twice. Their types are
# inferred, the same by mypy and by pyright, as right_program.py shows; written down they would be the twin by hand.
# The `__getattr__` of a package is made by `lazy_imports`, whose type says all there is to say.
INFERRED = re.compile(r"mainspring\.client\.sync_client\.SyncClient\.\w+|[\w.]+\.__getattr__")

Mistakes = dict[int, str]  # line -> what was said about it


def by_mypy(program: Path) -> Mistakes:
    done = _tool(sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context", str(program))
    said = re.findall(r"^.*?:(\d+): error: (.*)$", done.stdout, re.MULTILINE)
    assert said or done.returncode == 0, done.stdout + done.stderr
    return {int(line): text for line, text in said}


def by_pyright(program: Path) -> Mistakes:
    told = _pyright("--pythonpath", sys.executable, str(program))["generalDiagnostics"]
    return {each["range"]["start"]["line"] + 1: each["message"] for each in told if each["severity"] == "error"}


def _pyright(*arguments: str) -> Any:
    """What pyright says, as JSON. Under CI it must be there."""
    missing = [name for name, found in (("pyright", _has_pyright()), ("node", shutil.which("node"))) if not found]
    if missing and not os.environ.get("CI"):
        pytest.skip(f"{' and '.join(missing)} not installed: pip install pyright, and Node.js")
    assert not missing, f"not installed: {missing}"
    done = _tool(sys.executable, "-m", "pyright", "--outputjson", *arguments)
    try:
        return json.loads(done.stdout)
    except ValueError:
        raise AssertionError(done.stdout + done.stderr) from None


def _has_pyright() -> bool:
    return importlib.util.find_spec("pyright") is not None


def _tool(*command: str) -> subprocess.CompletedProcess[str]:
    # pyright looks for packages where the `python` of the path does; the folder is found without being installed
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {
        **os.environ,
        "PATH": path,
        "PYTHONPATH": str(ROOT / "src"),
        "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1",
        "MYPY_FORCE_COLOR": "0",
    }
    return subprocess.run(command, cwd=HERE, env=env, capture_output=True, text=True, timeout=380, check=False)


CHECKERS = pytest.mark.parametrize("checked", [by_mypy, by_pyright])


@CHECKERS
@pytest.mark.timeout(400)
def test_a_right_program_has_no_mistakes(checked: Callable[[Path], Mistakes]) -> None:
    assert checked(RIGHT) == {}


@CHECKERS
@pytest.mark.timeout(400)
def test_every_mistake_is_found_and_nothing_else(checked: Callable[[Path], Mistakes]) -> None:
    lines = WRONG.read_text(encoding="utf-8").splitlines()
    marked = {number for number, line in enumerate(lines, 1) if "  # wrong: " in line}
    found = checked(WRONG)
    assert {number: lines[number - 1] for number in marked - found.keys()} == {}, "not found"
    assert {number: text for number, text in found.items() if number not in marked} == {}, "nothing is wrong there"


@pytest.mark.timeout(400)
def test_every_public_name_has_a_type_that_all_checkers_understand_alike() -> None:
    told = _pyright("--verifytypes", "mainspring", "--ignoreexternal")["typeCompleteness"]
    assert told["packageName"] == "mainspring"
    assert told["pyTypedPath"]
    assert told["exportedSymbolCounts"]["withUnknownType"] == 0
    # One name without a type makes everything that mentions it unclear, so only the causes are looked at. An attribute
    # that a base declares and a method of a subclass sets again is none: both checkers take what the base says.
    unclear = [
        f"{where.get('file', '')}:{where.get('range', {}).get('start', {}).get('line', -1) + 1} {symbol['name']}: "
        f"{where['message']}"
        for symbol in told["symbols"]
        if not INFERRED.fullmatch(symbol["name"])
        for where in symbol["diagnostics"]
        if where["message"].startswith("Type is missing type annotation")
    ]
    assert unclear == [], "write the type beside the name, as in `self.count: int = 0`"


def test_every_public_name_can_be_imported_and_is_listed() -> None:
    import mainspring

    assert sorted(mainspring.__all__) == mainspring.__all__
    assert dir(mainspring) == mainspring.__all__
    for name in mainspring.__all__:
        assert getattr(mainspring, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = mainspring.Nothing  # type: ignore[attr-defined]
