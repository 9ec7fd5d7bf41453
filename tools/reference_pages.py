"""Makes docs/reference/python.md and the pages it leads to: every public name with its signature and its docstring.

python -m tools.reference_pages docs/reference

A class is shown as a stub: its fields, then its methods. What a method does is said by its docstring or, where a class
keeps a contract (an engine, a clock), by the contract's.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import msgspec

MODULES: Final = (
    "mainspring",
    "mainspring.app",
    "mainspring.testing",
    "mainspring.testing.simulation",
    "mainspring.client",
    "mainspring.tasks",
    "mainspring.outbox",
    "mainspring.postgres",
    "mainspring.kernel",
    "mainspring.runs",
    "mainspring.beats",
    "mainspring.bus",
    "mainspring.log",
    "mainspring.loop",
    "mainspring.guests",
    "mainspring.node",
    "mainspring.durations",
    "mainspring.retries",
    "mainspring.codec",
    "mainspring.errors",
)
WIDTH: Final = 100

INTRODUCTION: Final = """\
# Python names

These pages are made from the docstrings: `python -m tools.reference_pages docs/reference` writes them. What is
listed here is public; other modules may change without notice. Settings are on [a page of their own](settings.md), and
longer texts about each part are beside this page: [App](app.md), [client](client.md), [testing](testing.md),
[kernel](kernel.md), [runs](runs.md), [beats](beats.md), [loop](loop.md), [schemas](schemas.md).

"""


def pages() -> dict[str, str]:
    """Every page by its path in the folder of the reference."""
    homes: dict[int, str] = {}
    for name in reversed(MODULES[1:]):  # a name that several modules offer is told by the first of them
        homes.update({id(getattr(_module(name), each)): name for each in public_names(name)})
    made = {"python.md": INTRODUCTION + _contents() + _index(homes)}
    for name in MODULES[1:]:
        told = (_section(name, each) for each in public_names(name) if _is_told_here(homes, name, each))
        made[f"python/{name}.md"] = f"# {name}\n\n{_text(_module(name))}\n{''.join(told)}"
    return made


def public_names(module: str) -> list[str]:
    """What `__all__` lists; without one, the classes and functions that the module defines."""
    found = _module(module)
    listed = getattr(found, "__all__", None)
    if listed is not None:
        return sorted(listed, key=str.lower)
    return [
        name
        for name, value in vars(found).items()
        if (not name.startswith("_") and getattr(value, "__module__", "") == module and inspect.isroutine(value))
        or (inspect.isclass(value) and value.__module__ == module and not name.startswith("_"))
    ]


def methods_of(cls: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties that are Mainspring's own, as they stand in the code, bases first."""
    seen: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("mainspring"):
            seen.update({name: value for name, value in vars(base).items() if _is_method(value)})
    yield from ((name, value) for name, value in seen.items() if not name.startswith("_"))


def document_of(module: str, cls: type, name: str, method: Any) -> str:
    """What is said about a method: by itself, by a base, or by the contract of its module."""
    contracts = (getattr(_module(module), each) for each in public_names(module))
    for owner in (cls, *cls.__mro__, *(each for each in contracts if getattr(each, "_is_protocol", False))):
        told = inspect.getattr_static(owner, name, None) if owner is not cls else method
        if told is not None and (text := _function(told).__doc__):
            return inspect.cleandoc(text)
    return ""


# -- one name


def _section(module: str, name: str) -> str:
    value = getattr(_module(module), name)
    if inspect.isclass(value):
        return f"\n## {name}\n\n{_fence(_stub(value))}\n{_text(value)}\n{_methods_told(module, value)}"
    if inspect.isroutine(value):
        return f"\n## {name}\n\n{_fence(_definition(name, value))}\n{_text(value)}\n"
    shown, comment = _assigned(module, name)
    return f"\n## {name}\n\n{_fence(shown)}" + (f"\n{comment}\n" if comment else "")


def _stub(cls: type) -> str:
    bases = [base.__name__ for base in cls.__bases__ if issubclass(cls, Exception) and base is not object]
    head = f"class {cls.__name__}({', '.join(bases)}):" if bases else f"class {cls.__name__}:"
    lines = list(_fields(cls))
    own = vars(cls).get("__init__")
    if inspect.isfunction(own) and not is_dataclass(cls) and not _takes_anything(own):
        lines.append(_definition("__init__", own))
    lines += [_definition(name, method) for name, method in methods_of(cls)]
    return head + (" ..." if not lines else "\n" + textwrap.indent("\n".join(lines), "    "))


def _fields(cls: type) -> Iterator[str]:
    if issubclass(cls, Exception):
        if "code" in vars(cls) and isinstance(vars(cls)["code"], str):
            yield f"code = {vars(cls)['code']!r}"
        return
    defaults: dict[str, Any] = {}
    if is_dataclass(cls):
        defaults = {
            each.name: each.default if each.default is not MISSING else each.default_factory
            for each in fields(cls)
            if each.default is not MISSING or each.default_factory is not MISSING
        }
    elif issubclass(cls, msgspec.Struct):
        given = cls.__struct_defaults__
        defaults = dict(zip(cls.__struct_fields__[len(cls.__struct_fields__) - len(given) :], given, strict=True))
    told: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("mainspring"):
            told.update({name: str(hint) for name, hint in inspect.get_annotations(base).items()})
    if not (is_dataclass(cls) or issubclass(cls, msgspec.Struct)):
        told |= _attributes(cls)
    for name, hint in told.items():
        if not name.startswith("_") and not hint.startswith(("ClassVar", "Final")):
            yield f"{name}: {hint}" + (f" = {_shown(defaults[name])}" if name in defaults else "")


def _attributes(cls: type) -> dict[str, str]:
    """What `__init__` declares: `self.topic: str = topic`."""
    made = vars(cls).get("__init__")
    if not inspect.isfunction(made):
        return {}
    nodes = ast.walk(ast.parse(textwrap.dedent(inspect.getsource(made))))
    return {
        node.target.attr: ast.unparse(node.annotation)
        for node in nodes
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute)
    }


def _definition(name: str, method: Any) -> str:
    """`def name(...) -> T: ...`, over several lines where it is long."""
    function = _function(method)
    marks = {property: "@property\n", staticmethod: "@staticmethod\n", classmethod: "@classmethod\n"}
    before = next((text for kind, text in marks.items() if isinstance(method, kind)), "")
    word = "async def" if inspect.iscoroutinefunction(function) else "def"
    signature = inspect.signature(function)
    gives = signature.return_annotation
    if (wrapped := getattr(function, "__wrapped__", None)) is not None:
        # A blocking verb has the parameters of the async one; what that promises, it gives at once.
        promised = _hint(gives).removeprefix("Coroutine[Any, Any, ")
        if promised != _hint(gives):
            gives = promised.removesuffix("]")
        elif not inspect.iscoroutinefunction(wrapped):
            gives = inspect.Signature.empty
    arrow = "" if gives is inspect.Signature.empty else f" -> {_hint(gives)}"
    items = list(_parameters(signature))
    line = f"{word} {name}({', '.join(items)}){arrow}: ..."
    if len(line) > WIDTH:
        line = f"{word} {name}(\n" + "".join(f"    {item},\n" for item in items) + f"){arrow}: ..."
    return before + line


def _parameters(signature: inspect.Signature) -> Iterator[str]:
    parameters = list(signature.parameters.values())
    starred = False
    for number, each in enumerate(parameters):
        if each.kind is each.KEYWORD_ONLY and not starred:
            yield "*"
            starred = True
        starred = starred or each.kind is each.VAR_POSITIONAL
        mark = "*" if each.kind is each.VAR_POSITIONAL else "**" if each.kind is each.VAR_KEYWORD else ""
        hint = "" if each.annotation is each.empty else f": {_hint(each.annotation)}"
        default = "" if each.default is each.empty else (" = " if hint else "=") + _shown(each.default)
        yield f"{mark}{each.name}{hint}{default}"
        following = parameters[number + 1].kind if number + 1 < len(parameters) else None
        if each.kind is each.POSITIONAL_ONLY and following is not each.POSITIONAL_ONLY:
            yield "/"


def _methods_told(module: str, cls: type) -> str:
    told = ((name, document_of(module, cls, name, method)) for name, method in methods_of(cls))
    lines = [f"- `{name}`: {textwrap.indent(text, '  ').strip()}\n" for name, text in told if text]
    return "\n" + "".join(lines) if lines else ""


# -- small things


def _contents() -> str:
    rows = (f"| [`{name}`](python/{name}.md) | {_first_line(_module(name))} |\n" for name in MODULES[1:])
    return "| module | what is in it |\n|---|---|\n" + "".join(rows)


def _index(homes: dict[int, str]) -> str:
    """The names of the package itself: most programs need no others."""
    rows = []
    for name in public_names("mainspring"):
        value = getattr(_module("mainspring"), name)
        home = homes[id(value)]
        rows.append(f"| [`{name}`](python/{home}.md#{name.lower()}) | {_first_line(value)} |\n")
    head = "| name | in short |\n|---|---|\n"
    return f"\n## mainspring\n\n{_text(_module('mainspring'))}\n\n{head}{''.join(rows)}"


def _is_told_here(homes: dict[int, str], module: str, name: str) -> bool:
    value = getattr(_module(module), name)
    return homes[id(value)] == module or not (inspect.isclass(value) or inspect.isroutine(value))


def _assigned(module: str, name: str) -> tuple[str, str]:
    """A constant or an alias as it stands in the code, and the comment behind it."""
    source = inspect.getsource(_module(module))
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            names = {each.name for each in node.names}
            if name in names or ("*" in names and name in getattr(_module(node.module), "__all__", ())):
                return _assigned(node.module, name)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            line = source.splitlines()[node.lineno - 1]
            return ast.unparse(node), line.partition("  # ")[2]
    return f"{name} = {getattr(_module(module), name)!r}", ""


def _function(method: Any) -> Any:
    if isinstance(method, property):
        return method.fget
    return method.__func__ if isinstance(method, staticmethod | classmethod) else method


def _is_method(value: Any) -> bool:
    return inspect.isfunction(_function(value))


def _takes_anything(function: Any) -> bool:
    kinds = {each.kind for name, each in inspect.signature(function).parameters.items() if name != "self"}
    return bool(kinds) and kinds <= {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


def _shown(value: Any) -> str:
    simple = value is None or (isinstance(value, bool | int | float | str | bytes) and type(value).__repr__ is not None)
    if simple and type(value).__module__ == "builtins":
        return repr(value)
    return "()" if value == () else "..."


def _hint(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _text(value: Any) -> str:
    return inspect.cleandoc(value.__doc__ or "")


def _first_line(value: Any) -> str:
    return _text(value).splitlines()[0] if value.__doc__ else ""


def _fence(code: str) -> str:
    return f"```python no-run\n{code}\n```\n"


def _module(name: str) -> ModuleType:
    return importlib.import_module(name)


def main() -> None:
    """Write the pages below the folder that the command line names."""
    folder = Path(sys.argv[1])
    made = pages()
    for old in (folder / "python").glob("*.md"):
        if f"python/{old.name}" not in made:
            old.unlink()
    for path, text in made.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
