"""Which messages a schema is about, and which schemas are refused at boot."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, TypedDict, Union

import msgspec
import pytest

from mainspring import App
from mainspring.kernel import Capability, CapabilityError, Kernel
from mainspring.kernel.contracts import inbound_schemas
from mainspring.loop import VirtualClock
from tests.support.kernel import Worker, shape, virtual


@dataclass
class FreeType:
    kind: Literal["command"]
    type: str
    data: dict[str, Any]


@dataclass
class FreeKind:
    kind: str
    type: Literal["Free.Kind"]
    data: dict[str, Any]


@dataclass
class Patterned:
    kind: Literal["command"]
    type: Annotated[str, msgspec.Meta(pattern="^Memory[.]")]
    data: dict[str, Any]


@dataclass
class HalfFree:
    kind: Literal["command"]
    type: Union[Literal["Half.Free"], str]  # noqa: UP007
    data: dict[str, Any]


@dataclass
class TwoKinds:
    kind: Literal["command", "query"]
    type: Literal["Two.Kinds"]
    data: dict[str, Any]


class Names(enum.Enum):
    ONE = "Enum.One"


@dataclass
class Enumerated:
    kind: Literal["command"]
    type: Names
    data: dict[str, Any]


@dataclass
class NotAType:
    kind: Literal["command"]
    type: Literal["not a type"]
    data: dict[str, Any]


@dataclass
class Answer:
    kind: Literal["reply"]
    type: Literal["Some.Answer"]
    data: dict[str, Any]


class AsTypedDict(TypedDict):
    kind: Literal["query"]
    type: Literal["Typed.Dict"]
    data: int


class AsStruct(msgspec.Struct):
    kind: Literal["query"]
    type: Literal["As.Struct"]
    data: int


def pairs(schema: Any) -> list[tuple[str | None, tuple[str, ...] | None]]:
    return [(branch.kind, branch.types) for branch in inbound_schemas(schema, where="here")]


def test_one_literal_kind_and_type() -> None:
    """Checklist 94, 79."""
    assert pairs(shape("command", "A.B")) == [("command", ("A.B",))]
    assert pairs(AsTypedDict) == [("query", ("Typed.Dict",))]
    assert pairs(AsStruct) == [("query", ("As.Struct",))]


def test_one_literal_kind_and_several_types() -> None:
    """Checklist 95."""
    assert pairs(shape("query", "A.B", "A.C")) == [("query", ("A.B", "A.C"))]

    @dataclass
    class Either:
        kind: Literal["query"]
        type: Union[Literal["A.B"], Literal["A.C", "A.D"]]  # noqa: UP007
        data: int

    Either.__annotations__ = {"kind": Literal["query"], "type": Literal["A.B"] | Literal["A.C", "A.D"], "data": int}
    assert pairs(Either) == [("query", ("A.B", "A.C", "A.D"))]


def test_a_union_of_messages_also_a_nested_one() -> None:
    """Checklist 96."""
    one, two, three = shape("command", "A.B"), shape("query", "A.C"), shape("query", "A.D")
    expected = [("command", ("A.B",)), ("query", ("A.C",)), ("query", ("A.D",))]
    assert pairs(Union[one, two, three]) == expected  # noqa: UP007
    assert pairs(Union[Union[one, two], three]) == expected  # noqa: UP007
    assert pairs(one | (two | three)) == expected


@pytest.mark.parametrize("schema", [FreeType, HalfFree, Enumerated, NotAType], ids=lambda schema: schema.__name__)
def test_a_type_that_cannot_be_listed_is_refused(schema: Any) -> None:
    """Checklist 97, 100."""
    with pytest.raises(CapabilityError) as caught:
        inbound_schemas(schema, where="capability 'X'")
    assert "'X'" in caught.value.message


def test_a_type_by_pattern_is_refused() -> None:
    """Checklist 98."""
    with pytest.raises(CapabilityError, match="literal"):
        inbound_schemas(Patterned, where="here")


@pytest.mark.parametrize("schema", [FreeKind, TwoKinds], ids=lambda schema: schema.__name__)
def test_a_kind_that_is_not_one_literal_is_refused(schema: Any) -> None:
    """Checklist 99."""
    with pytest.raises(CapabilityError, match="kind must be one literal") as caught:
        inbound_schemas(schema, where="here")
    assert "Literal" in caught.value.remedy


def test_a_union_with_one_free_member_is_refused() -> None:
    """Checklist 100."""
    with pytest.raises(CapabilityError):
        inbound_schemas(Union[shape("command", "A.B"), FreeType], where="here")  # noqa: UP007


@pytest.mark.parametrize("schema", [Answer, dict, int, "text", None, Any])
def test_what_is_no_inbound_message_is_refused(schema: Any) -> None:
    """Checklist 79."""
    with pytest.raises(CapabilityError):
        inbound_schemas(schema, where="here")


def low_level(id: str, **changes: Any) -> Capability:
    whole: dict[str, Any] = {
        "id": id,
        "description": "does things",
        "inbound": shape("command", f"{id}.Do"),
        "outbound": shape("reply", f"{id}.Do"),
        "spawn": lambda: Worker(lambda worker, message: None),
    }
    return Capability(**{**whole, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"description": ""},
        {"inbound": None},
        {"outbound": None},
        {"spawn": None},
        {"subscribes": ["not a type"]},
        {"subscribes": "Some.Event"},
        {"isolation": "thread"},
        {"inbound": FreeType},
    ],
    ids=repr,
)
@virtual
async def test_a_capability_that_misses_something_fails_the_boot(clock: VirtualClock, changes: dict[str, Any]) -> None:
    """Checklist 78."""
    kernel = Kernel(clock=clock)
    kernel.register(low_level("Good", **changes))
    with pytest.raises(CapabilityError):
        await kernel.start()


@virtual
async def test_two_claims_on_one_key_abort_and_name_it(clock: VirtualClock) -> None:
    """Checklist 101."""
    kernel = Kernel(clock=clock)
    kernel.register(low_level("One"), low_level("Two", inbound=shape("command", "One.Do")))
    with pytest.raises(CapabilityError, match=r"command:One\.Do"):
        await kernel.start()


@virtual
async def test_one_capability_claiming_a_key_twice_aborts(clock: VirtualClock) -> None:
    """Checklist 101."""
    for claim in (lambda data, ctx: None, partial(lambda greeting, data, ctx: greeting, "hello")):
        app = App("twice")
        for _ in range(2):
            app.command("Twice.Said")(claim)
        with pytest.raises(CapabilityError, match=r"command:Twice\.Said"):
            await app.kernel(clock=clock).start()


@virtual
async def test_two_capabilities_of_one_name_abort(clock: VirtualClock) -> None:
    kernel = Kernel(clock=clock)
    kernel.register(low_level("Same"), low_level("Same", inbound=shape("command", "Other.Do")))
    with pytest.raises(CapabilityError, match="'Same'"):
        await kernel.start()


@virtual
async def test_subscriptions_keep_the_order_of_registration(clock: VirtualClock) -> None:
    """Checklist 102."""
    kernel = Kernel(clock=clock)
    for name in ("Zed", "Alpha", "Mid"):
        kernel.register(low_level(name, subscribes=["Some.Event", "Some.Event"]))
    await kernel.start()
    assert kernel.summary()["subscriptions"] == {"Some.Event": ["Zed", "Alpha", "Mid"]}
    await kernel.stop()
