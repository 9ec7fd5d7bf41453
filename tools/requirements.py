"""What the project is built from: hashes for the locked versions, and the lowest versions that it allows.

    python -m tools.requirements hashes requirements/*.txt   # write the hashes of every file of each locked version
    python -m tools.requirements lowest                      # the lower bounds of pyproject.toml, as constraints
    python -m tools.requirements bill dist/mainspring.cdx.json   # what a node is made of, as CycloneDX

Hashes are asked of the package index that pip uses. They are of all files of a version, so that one lock is good for
every machine and every Python.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
import urllib.request
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
PATIENCE_S: Final = 60.0
_LOCKED: Final = re.compile(r"^([A-Za-z0-9._-]+)==([^\s\\;]+)")
_LINK: Final = re.compile(r'href="[^"#]*#sha256=([0-9a-f]{64})"[^>]*>\s*([^<\s]+)\s*<')
_BOUND: Final = re.compile(r"^([A-Za-z0-9._-]+)(\[[a-z,]+\])?>=([0-9.]+)")
_PURL: Final = "pkg:pypi/{}@{}"


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


# -- hashes


def locked(path: Path) -> list[tuple[str, str]]:
    """The names and versions of a lock."""
    return [(found[1], found[2]) for line in path.read_text().splitlines() if (found := _LOCKED.match(line))]


def index() -> str:
    """The package index that pip uses."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "https://pypi.org/simple"


def hashes_of(base: str, name: str, version: str) -> list[str]:
    """The SHA-256 of every file of one version, in order."""
    with urllib.request.urlopen(f"{base.rstrip('/')}/{canonical(name)}/", timeout=PATIENCE_S) as answer:
        page = answer.read().decode()
    found = {digest for digest, file in _LINK.findall(page) if _is_of(file, name, version)}
    if not found:
        raise SystemExit(f"the index has no file of {name} {version}")
    return sorted(found)


def _is_of(file: str, name: str, version: str) -> bool:
    """Whether a wheel or a source archive is of this version."""
    if file.endswith(".whl"):
        of_name, of_version = file.split("-")[:2]
    else:
        of_name, _, of_version = re.sub(r"\.(tar\.gz|zip)$", "", file).rpartition("-")
    return canonical(of_name) == canonical(name) and of_version == version


def write_hashes(path: Path) -> None:
    """Write a lock again, with hashes."""
    base, versions = index(), locked(path)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda each: hashes_of(base, *each), versions))
    lines = []
    for (name, version), digests in zip(versions, found, strict=True):
        parts = [f"{name}=={version}", *(f"--hash=sha256:{each}" for each in digests)]
        lines.append(" \\\n    ".join(parts))
    path.write_text("\n".join(lines) + "\n")


# -- the lowest versions


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def bounds() -> Iterator[tuple[str, str]]:
    """Every dependency, those of extras too, with its lower bound."""
    declared = project()
    extras = [each for extra in declared["optional-dependencies"].values() for each in extra]
    for each in [*declared["dependencies"], *extras]:
        found = _BOUND.match(each)
        if found is None:
            raise SystemExit(f"{each!r} in pyproject.toml has no lower bound")
        yield found[1], found[3]


# -- the bill of materials


def bill(names: list[str]) -> dict[str, Any]:
    """A CycloneDX document of the project and the named packages, which are installed."""
    declared = project()
    own = _PURL.format(declared["name"], declared["version"])
    parts = [_component(name) for name in names]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid4()}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.now(UTC).isoformat(timespec="seconds"),
            "component": {
                "type": "library",
                "bom-ref": own,
                "name": declared["name"],
                "version": declared["version"],
                "purl": own,
                "licenses": [{"license": {"id": declared["license"]}}],
            },
        },
        "components": parts,
        "dependencies": [
            {"ref": own, "dependsOn": sorted(_refs(map(_name, declared["dependencies"]), parts))},
            *({"ref": each["bom-ref"], "dependsOn": sorted(_refs(_needed(each["name"]), parts))} for each in parts),
        ],
    }


def _component(name: str) -> dict[str, Any]:
    found = distribution(name)
    purl = _PURL.format(canonical(name), found.version)
    licence = found.metadata.get("License-Expression") or found.metadata.get("License") or ""
    part: dict[str, Any] = {"type": "library", "bom-ref": purl, "name": canonical(name), "version": found.version}
    part["purl"] = purl
    if licence and "\n" not in licence:
        part["licenses"] = [{"license": {"name": licence}}]
    return part


def _refs(names: Iterator[str], parts: list[dict[str, Any]]) -> set[str]:
    wanted = {canonical(name) for name in names}
    return {each["bom-ref"] for each in parts if each["name"] in wanted}


def _needed(name: str) -> Iterator[str]:
    try:
        needed = distribution(name).requires or []
    except PackageNotFoundError:
        needed = []
    return (_name(each) for each in needed if "extra ==" not in each)


def _name(requirement: str) -> str:
    return re.split(r"[\s;<>=!~\[(]", requirement, maxsplit=1)[0]


def main(command: str, *arguments: str) -> None:
    if command == "hashes":
        for each in arguments:
            write_hashes(Path(each))
    elif command == "lowest":
        for name, version in sorted(set(bounds())):
            print(f"{name}=={version}")
    elif command == "bill":
        names = [name for name, _ in locked(ROOT / "requirements" / "runtime.txt") if canonical(name) not in BUILDING]
        Path(arguments[0]).write_text(json.dumps(bill(names), indent=1) + "\n")
    else:
        raise SystemExit(__doc__)


BUILDING: Final = {"editables", "hatchling", "packaging", "pathspec", "pluggy", "tomlkit", "trove-classifiers"}

if __name__ == "__main__":
    main(*sys.argv[1:])
