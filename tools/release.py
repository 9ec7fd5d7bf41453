"""`make release`: build the wheel and the source archive, check both, and write the bill of materials.

    python -m tools.release dist PYTHON...

Each of the two is installed by every PYTHON given into an environment of its own, with the locked versions, and must
answer there: the command says its version, every module can be imported, and a small program runs. Nothing is uploaded.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from tools.requirements import ROOT, project

_LOCK: Final = ROOT / "requirements" / "runtime.txt"
_PROGRAM: Final = """
import asyncio, importlib, pkgutil, mainspring
from mainspring import App
from mainspring.testing import simulate

OPTIONAL = tuple(f"mainspring.{each}" for each in ("contrib", "guests", "log.engines.", "outbox", "testing."))
for module in pkgutil.walk_packages(mainspring.__path__, "mainspring."):
    if not module.name.startswith(OPTIONAL) and not module.name.endswith("__main__"):
        importlib.import_module(module.name)
app = App("shop")

@app.command("Order.Place")
async def place(sku: str, ctx) -> str:
    return sku

async def main():
    async with simulate(app) as world:
        assert await world.command("Order.Place", "pen") == "pen"

asyncio.run(main())
"""


def run(*command: str | Path) -> str:
    done = subprocess.run([str(each) for each in command], capture_output=True, text=True, check=False, cwd="/")
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def build(dist: Path) -> list[Path]:
    """The wheel and the source archive, new."""
    for old in [*dist.glob("*.whl"), *dist.glob("*.tar.gz")]:
        old.unlink()
    done = subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(dist)], cwd=ROOT, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)
    return [*sorted(dist.glob("*.whl")), *sorted(dist.glob("*.tar.gz"))]


def check_contents(archive: Path) -> None:
    """What must be in there is, and what is nobody's business is not."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as opened:
            names = opened.namelist()
        wanted = ("mainspring/py.typed", "mainspring/dashboard/index.html", "mainspring/client/client.js")
    else:
        with tarfile.open(archive) as opened:
            names = [name.partition("/")[2] for name in opened.getnames()]
        wanted = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "SECURITY.md", "src/mainspring/__init__.py")
    missing = [each for each in wanted if each not in names]
    strange = [each for each in names if "__pycache__" in each or each.startswith((".venv", "data/"))]
    if missing or strange:
        raise SystemExit(f"{archive.name} lacks {missing}, and has {strange}")


def check_install(archives: list[Path], python: str) -> None:
    """Install each where nothing but the locked versions is, and use it."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "environment"
        run(python, "-m", "venv", home)
        here = home / "bin" / "python"
        pip = (here, "-m", "pip", "--disable-pip-version-check")
        run(*pip, "install", "-q", "--require-hashes", "-r", _LOCK)
        for archive in archives:
            run(*pip, "install", "-q", "--no-deps", "--no-build-isolation", archive)
            said = run(home / "bin" / "mainspring", "--version").split()
            if said != ["mainspring", project()["version"]]:
                raise SystemExit(f"{archive.name} says it is {said}")
            run(here, "-W", "error::SyntaxWarning", "-c", _PROGRAM)
            run(*pip, "uninstall", "-q", "-y", "mainspring")
            print(f"{archive.name} works with {run(python, '--version').strip()}", flush=True)


def main(dist: str, *pythons: str) -> None:
    folder = (ROOT / dist).resolve()
    folder.mkdir(exist_ok=True)
    archives = build(folder)
    for archive in archives:
        check_contents(archive)
    for python in pythons or (sys.executable,):
        check_install(archives, python)
    print(f"They name {project()['urls']['Source']} as their home: upload them only if that is yours.", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
