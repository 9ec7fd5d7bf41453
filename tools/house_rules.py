"""The rules of the house that no other linter knows: `python -m tools.house_rules`.

1. A name outside its package is imported from the package, never from a module inside it.
2. No object reaches into another: `x._name` only where the module itself defines `_name`, or where a line
   `# private names: WHY` stands in it (for libraries without a public way).
3. A folder shows at most 14 modules, so that a newcomer guesses the right one.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent / "src"
PACKAGE = "mainspring"
MOST_MODULES = 14
FREE = {"self", "cls", "os", "sys"}  # whose private names anybody may use: one's own, and the interpreter's


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def inner_imports(name: str, tree: ast.Module, inner: set[str]) -> Iterator[tuple[int, str]]:
    own = name.split(".")[1:2]
    for line, target in imported(tree):
        parts = target.split(".")
        if target in inner and len(parts) > 2 and parts[1:2] != own:
            yield line, f"imports {target}, a module inside another package: import from {'.'.join(parts[:-1])}"


def private_accesses(tree: ast.Module) -> Iterator[tuple[int, str]]:
    nodes = list(ast.walk(tree))
    own = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    own |= {node.attr for node in nodes if isinstance(node, ast.Attribute) and _owner(node) in {"self", "cls"}}
    for node in nodes:
        if not isinstance(node, ast.Attribute) or not node.attr.startswith("_") or node.attr.startswith("__"):
            continue
        if _owner(node) not in FREE and node.attr not in own:
            yield node.lineno, f"reaches into another object: {ast.unparse(node)}"


def _owner(node: ast.Attribute) -> str | None:
    return node.value.id if isinstance(node.value, ast.Name) else None


def complaints() -> Iterator[str]:
    modules = {name_of(path): path for path in sorted(ROOT.rglob("*.py"))}
    inner = {name for name, path in modules.items() if path.name != "__init__.py"}
    for name, path in modules.items():
        source = path.read_text()
        tree = ast.parse(source)
        private = () if "\n# private names: " in source else private_accesses(tree)
        for line, text in sorted({*inner_imports(name, tree, inner), *private}):
            yield f"{path.relative_to(ROOT.parent)}:{line}: {text}"
    folders = Counter(path.parent for path in modules.values() if path.name not in ("__init__.py", "__main__.py"))
    for folder, count in folders.items():
        if count > MOST_MODULES:
            yield f"{folder.relative_to(ROOT.parent)}: {count} modules; more than {MOST_MODULES} are too many"


def main() -> int:
    found = list(complaints())
    print("\n".join(found) if found else "the rules of the house are kept")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
