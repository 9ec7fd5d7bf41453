"""`mainspring new NAME`: a small project to begin with: one program that uses every part, and tests that pass."""

from __future__ import annotations

import keyword
import sys
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Annotated, Final

import typer

from mainspring.cli.support.output import CommandFailed, JsonOption, say_json

# The file of the project -> the template below cli/node/project
TEMPLATES: Final = {
    "$module.py": "program.py.txt",
    "test_$module.py": "test_program.py.txt",
    "README.md": "README.md",
    "pytest.ini": "pytest.ini",
    "requirements.txt": "requirements.txt",
    ".gitignore": "gitignore",
}
FASTAPI: Final = {
    "$module.py": "fastapi_program.py.txt",
    "test_$module.py": "fastapi_test.py.txt",
    "README.md": "fastapi_README.md",
    "requirements.txt": "fastapi_requirements.txt",
}


def files_of(name: str, *, fastapi: bool = False) -> dict[str, str]:
    """The files of a new project, by path."""
    module = name.replace("-", "_").lower()
    if not module.isidentifier() or keyword.iskeyword(module):
        raise CommandFailed(f"{name!r} cannot name a program", remedy="use letters, digits and _, like shop")
    if module in sys.stdlib_module_names or module in ("test", "mainspring", "pytest"):
        raise CommandFailed(
            f"{name!r} cannot name a program: Python would take {module}.py for another module",
            remedy="choose a name that is not taken, like shop",
        )
    folder = files("mainspring.cli.node") / "project"
    return {
        Template(path).substitute(module=module): Template((folder / template).read_text("utf-8")).substitute(
            name=name, module=module
        )
        for path, template in (TEMPLATES | (FASTAPI if fastapi else {})).items()
    }


def new(
    name: Annotated[str, typer.Argument(help="The project's name; its folder and its module are called so.")],
    into: Annotated[Path | None, typer.Option(help="Where to make the folder.  [default: here]")] = None,
    fastapi: Annotated[bool, typer.Option("--fastapi", help="A FastAPI application with the node inside.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a small project to begin with. One program that uses every part, and its tests."""
    written = files_of(name, fastapi=fastapi)
    folder = (into or Path()) / name
    try:
        if folder.exists() and any(folder.iterdir()):
            raise CommandFailed(f"there is something in {folder} already", remedy="choose another name or place")
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in written.items():
            (folder / path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandFailed(
            f"cannot write to {folder}: {error.strerror}", remedy="choose another place with --into"
        ) from None
    module = next(iter(written)).removesuffix(".py")
    if as_json:
        say_json({"folder": str(folder), "files": list(written), "program": f"{module}:app"})
        return
    typer.echo(f"made {folder}: {', '.join(written)}")
    start = f"uvicorn {module}:api --reload" if fastapi else f"mainspring serve {module}:app --reload"
    typer.echo(f"  cd {folder} && {start}")
    typer.echo(f"  pytest     # needs: pip install {'-r requirements.txt' if fastapi else 'pytest pytest-asyncio'}")
