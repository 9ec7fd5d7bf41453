"""The arguments of a durable run, as its record keeps them: a JSON array, typed by the program's parameters."""

from __future__ import annotations

from typing import Any

import msgspec

from mainspring.runs.programs import Program
from mainspring.runs.values import Raw, decode, encode, parameter_types


def encode_arguments(program: Program, args: tuple[Any, ...]) -> Raw:
    """The arguments as a JSON array; Unserialisable names the parameter and the path inside it."""
    types, names = parameter_types(program), _parameter_names(program)
    texts = []
    for index, argument in enumerate(args):
        path = names[index] if index < len(names) else f"args[{index}]"
        texts.append(encode(argument, path, types[index] if index < len(types) else Any))
    return Raw(b"[" + b",".join(texts) + b"]")


def decode_arguments(program: Program, args: Raw) -> tuple[Any, ...]:
    types = parameter_types(program)
    parts = msgspec.json.decode(args, type=list[Raw])
    return tuple(decode(part, types[i] if i < len(types) else Any) for i, part in enumerate(parts))


def _parameter_names(program: Program) -> tuple[str, ...]:
    code = getattr(program, "__code__", None)
    return () if code is None else code.co_varnames[: code.co_argcount]
