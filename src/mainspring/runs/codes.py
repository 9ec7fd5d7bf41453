"""Which code a program has: a digest, so that nodes can tell an old program from a new one of the same name.

The digest is made from what the function does, not from how it is written: comments, line numbers, formatting and its
docstring do not count. Functions that it calls do not count either, nor does the code of a guest: then the digest says
that two programs are the same although they differ, and what happens is what would happen without it. Another minor
version of Python is another code.

The space `runs/codes` keeps for each program the codes in the order in which they came to the log, the newest last.
"""

from __future__ import annotations

import functools
import hashlib
import types
from collections.abc import Iterable
from typing import Any, Final

CODES: Final = "runs/codes"


def code_of(program: Any) -> str:
    """The digest of a program's code; empty for one that has no Python code of its own."""
    while isinstance(program, functools.partial):
        program = program.func
    function = program if hasattr(program, "__code__") else getattr(type(program), "__call__", None)  # noqa: B004
    code = getattr(function, "__code__", None)
    if not isinstance(code, types.CodeType):
        return ""
    digest = hashlib.blake2b(digest_size=8)
    for part in _parts(code):
        digest.update(part.encode())
        digest.update(b"\0")
    return digest.hexdigest()


def _parts(code: types.CodeType) -> Iterable[str]:
    yield code.co_code.hex()
    yield repr((code.co_argcount, code.co_kwonlyargcount, code.co_flags))
    yield repr((code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars))
    for number, constant in enumerate(code.co_consts):
        if isinstance(constant, types.CodeType):
            yield from _parts(constant)
        elif isinstance(constant, frozenset):  # its order is another one in every process
            yield repr(sorted(map(repr, constant)))
        elif number or not isinstance(constant, str):  # the first may be the docstring
            yield repr(constant)
