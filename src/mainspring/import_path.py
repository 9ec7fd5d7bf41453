"""From `MODULE:NAME`, as people write it on a command line, to the object.

Everything between the two can go wrong in somebody else's code, so each way to fail is told as what it is: a text of
another form, a module that is not there, one that cannot be imported (with the line it happened on), a missing name.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from types import ModuleType
from typing import Final

from mainspring.errors import BootError

_PACKAGE: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")


def find_object(place: str, what: str = "App", form: str = "MODULE:APP, like shop:app") -> object:
    """What `MODULE:NAME` names, imported with the working directory on the path. NAME may have dots.

    `what` and `form` are for the remedies: what should be there, and how its place is written.
    """
    module_name, colon, name = place.partition(":")
    if not (module_name and colon and name):
        raise BootError(f"{place!r} does not say where the {what} is", remedy=f"write {form}")
    if module_name.endswith(".py") or not all(part.isidentifier() for part in module_name.split(".")):
        raise BootError(f"{module_name!r} is not the name of a module", remedy=f"write {form}, in the program's folder")
    found: object = _imported(module_name)
    for part in name.split("."):
        if not hasattr(found, part):
            raise BootError(
                f"module {module_name!r} has no {name!r}", remedy=f"name the variable that holds the {what}"
            )
        found = getattr(found, part)
    return found


def _imported(name: str) -> ModuleType:
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if f"{name}.".startswith(f"{error.name}."):
            raise BootError(
                f"there is no module {error.name!r}",
                remedy="run the command in the folder of the program, or install it",
            ) from error
        raise BootError(
            f"there is no module {error.name!r}, which {name!r} imports", remedy="install it, or correct its name"
        ) from error
    except (Exception, SystemExit) as error:  # a program that ends itself while it is read does not start either
        raise BootError(
            f"module {name!r} cannot be imported: {type(error).__name__}: {error}{_line(error)}",
            remedy=f"correct the program; `python -c 'import {name}'` shows the whole traceback",
        ) from error


def _line(error: BaseException) -> str:
    """Where it happened; a syntax error says so by itself. A refused declaration happened where the program made it."""
    if isinstance(error, SyntaxError):
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    ours = (_PACKAGE, "<string>")  # the second is the code of a dataclass: `App(...)` goes through it
    declared = (number for number, frame in enumerate(frames) if number and frame.filename.startswith(ours))
    place = frames[next(declared, len(frames)) - 1]  # the first frame is the import itself
    return f" ({os.path.basename(place.filename)}, line {place.lineno})"
