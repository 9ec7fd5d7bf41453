"""Effects, and the three ways to answer one.

An effect is a typed request that a program yields; it says what is wanted, never how. Its class is its identity: the
runtime finds the handler by the exact class and never falls back to a parent's handler, because a capability that is
missing must fail, not be replaced quietly by a similar one.

Effects are msgspec Structs (frozen): creating one costs a fraction of a dataclass, and a durable run can write its
arguments into the journal without a second description of their shape.
"""

from __future__ import annotations

import typing
from typing import Any, ClassVar, Generic, Literal, TypeVar

import msgspec

T_co = TypeVar("T_co", covariant=True)

Kind = Literal["resume", "tail"]
KINDS: tuple[Kind, ...] = ("resume", "tail")


class EffectMeta(msgspec.StructMeta):
    """Makes every effect class frozen and takes the `kind` keyword of the class statement."""

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        kind: str | None = None,
        journaled: bool | None = None,
        **options: Any,
    ) -> Any:
        if kind is not None and kind not in KINDS:
            raise TypeError(f"effect {name}: kind must be 'resume' or 'tail', not {kind!r}")
        options.setdefault("frozen", True)
        cls: Any = super().__new__(mcs, name, bases, namespace, **options)
        if kind is not None:
            cls.__kind__ = kind
        if journaled is not None:
            cls.__journaled__ = journaled
        return cls


class Effect(msgspec.Struct, Generic[T_co], metaclass=EffectMeta):
    """A request of a program; `T` is the type of its answer.

    Subclass it with annotated fields: `class Ask(Effect[int]): n: int`. An effect is of kind "resume" unless the class
    says `kind="tail"`; a resume effect is answered with `resume` or `end`, a tail effect with `tail` only.
    """

    __kind__: ClassVar[Kind] = "resume"
    __journaled__: ClassVar[bool] = True


def answer_type(effect: type[Effect[Any]]) -> Any:
    """The `T` in `class X(Effect[T])`, looked up along the bases; `Any` when the class does not say."""
    for cls in effect.__mro__:
        for base in getattr(cls, "__dict__", {}).get("__orig_bases__", ()):
            if typing.get_origin(base) is Effect:
                (argument,) = typing.get_args(base)
                return Any if isinstance(argument, TypeVar | str | typing.ForwardRef) else argument
    return Any


class Answer:
    """What a handler returns. Made by `resume`, `tail` and `end`, compared by kind and value."""

    __slots__ = ("value",)
    kind: ClassVar[str] = ""

    def __init__(self, value: Any = None) -> None:
        self.value: Any = value

    def __repr__(self) -> str:
        return f"{self.kind}({self.value!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Answer) and other.kind == self.kind and bool(other.value == self.value)

    def __hash__(self) -> int:
        return hash((self.kind, self.value))


class resume(Answer):
    """Answer a resume effect: the program goes on with `value`."""

    __slots__ = ()
    kind = "resume"


class tail(Answer):
    """Answer a tail effect: the program goes on with `value`; nothing else may answer it."""

    __slots__ = ()
    kind = "tail"


class end(Answer):
    """End the run at this effect with `value` as its outcome; the program is not resumed."""

    __slots__ = ()
    kind = "end"
