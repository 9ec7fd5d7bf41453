"""`*` is one segment, `**` any number; what a pattern means does not depend on how it is matched."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.bus import BadFrame
from mainspring.bus.access.patterns import NameSet, Pattern


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("orders", "orders", True),
        ("orders", "orders.eu", False),
        ("orders.*", "orders.eu", True),
        ("orders.*", "orders", False),
        ("orders.*", "orders.eu.paid", False),
        ("orders.**", "orders", True),
        ("orders.**", "orders.eu.paid", True),
        ("orders.**", "ordersx", False),
        ("**", "anything.at.all", True),
        ("*", "one", True),
        ("*", "one.two", False),
        ("**.x", "a.x.b.x", True),
        ("**.x", "x", True),
        ("**.x", "a.x.b", False),
        ("a.**.b.**.c", "a.b.b.c.x.c", True),
        ("a.**.b.**.c", "a.c.b", False),
        ("**.*", "a", True),
        ("*.**", "a", True),
        ("*.**.*", "a", False),
        ("**.**", "a", True),
        ("a.*.c", "a..c", True),
        ("Orders", "orders", False),
        ("ключ.*", "ключ.東京", True),
    ],
)
def test_a_pattern_fits_the_whole_name_or_not_at_all(pattern: str, name: str, fits: bool) -> None:
    assert Pattern(pattern).matches(name) is fits


@pytest.mark.parametrize("text", ["", "ord*", "*ers", "a.**b", "a.***", "*.*x"])
def test_a_wildcard_within_a_segment_is_refused_not_taken_literally(text: str) -> None:
    with pytest.raises(BadFrame, match="not a pattern"):
        Pattern(text)


def by_definition(pattern: list[str], name: list[str]) -> bool:
    """Tries every way; the meaning, not the method."""
    if not pattern:
        return not name
    if pattern[0] == "**":
        return any(by_definition(pattern[1:], name[taken:]) for taken in range(len(name) + 1))
    return bool(name) and pattern[0] in ("*", name[0]) and by_definition(pattern[1:], name[1:])


segments = st.sampled_from(["a", "b", ""])


@given(
    st.lists(st.one_of(segments, st.sampled_from(["*", "**"])), min_size=1, max_size=7),
    st.lists(segments, min_size=1, max_size=7),
)
def test_matching_agrees_with_the_definition(pattern: list[str], name: list[str]) -> None:
    text = ".".join(pattern)
    if text:
        assert Pattern(text).matches(".".join(name)) is by_definition(pattern, name)


def test_many_wildcards_against_a_long_name_do_not_blow_up() -> None:
    pattern = Pattern(".".join(["**", "a"] * 60 + ["b"]))
    assert not pattern.matches(".".join(["a"] * 2_000))


def test_a_set_holds_names_and_patterns() -> None:
    names = NameSet(("alice", "team.*"))
    assert ("alice" in names, "team.bob" in names, "bob" in names, bool(NameSet(()))) == (True, True, False, False)
