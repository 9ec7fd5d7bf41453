"""Programs by name. A durable run writes down the name of its program; whoever executes it again looks it up here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mainspring.runs.codes import code_of
from mainspring.runs.errors import RunError
from mainspring.runs.groups import PROGRAMS
from mainspring.runs.programs import Program, form_of, name_of

MOST_NAMED: Final = 20  # programs in the text of an error


class UnknownProgram(RunError, TypeError):
    """A run names a program that is not registered here. A TypeError like everything else that is no program."""

    code = "unknown_program"


class Programs:
    """The programs that durable runs of one runtime may name."""

    def __init__(self) -> None:
        self._by_name: dict[str, Program] = dict(PROGRAMS)
        self._names: dict[Program, str] = {program: name for name, program in PROGRAMS.items()}
        self._codes: dict[str, str] = {}
        self.on_new: list[Callable[[str], object]] = []

    def register(self, program: Program, name: str | None = None) -> str:
        """Make a program known under `name` (module and qualified name unless given); gives the name."""
        form_of(program)
        name = name or name_of(program)
        known = self._by_name.get(name)
        if known is not None and known is not program and name_of(known) != name_of(program):
            raise RunError(f"program {name!r} is already registered as {name_of(known)}", remedy="choose another name")
        self._by_name[name] = program
        self._names[program] = name
        self._codes.pop(name, None)
        for listener in self.on_new:
            listener(name)
        return name

    def name_for(self, program: Program | str) -> str:
        """The registered name of a program; one that is new is registered under its own name."""
        if isinstance(program, str):
            self.get(program)
            return program
        return self._names.get(program) or self.register(program)

    def get(self, name: str) -> Program:
        """The program of that name. Raises UnknownProgram."""
        try:
            return self._by_name[name]
        except KeyError:
            known = ", ".join(sorted(self._by_name.keys() - PROGRAMS.keys())[:MOST_NAMED]) or "none"
            raise UnknownProgram(
                f"no program named {name!r} is registered",
                remedy=f"known here: {known}; register one before its runs are recovered",
            ) from None

    def code(self, name: str) -> str:
        """The digest of the code of a program; empty where it is not known."""
        if name not in self._codes:
            program = self._by_name.get(name)
            self._codes[name] = "" if program is None or name in PROGRAMS else code_of(program)
        return self._codes[name]

    def codes(self) -> dict[str, str]:
        """The code of every registered program, by name, without the built-in ones."""
        return {name: self.code(name) for name in self.names()}

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def names(self) -> list[str]:
        """The names of all registered programs, sorted, without the built-in ones."""
        return sorted(name for name in self._by_name if name not in PROGRAMS)
