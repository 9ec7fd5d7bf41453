"""Random JSON Schemas and values for them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

scalars = st.one_of(
    st.sampled_from([{"type": name} for name in ("string", "integer", "number", "boolean", "null")]),
    st.builds(lambda low: {"type": "integer", "minimum": low}, st.integers(-2, 3)),
    st.builds(lambda low: {"type": "number", "exclusiveMaximum": low}, st.integers(-2, 3)),
    st.builds(lambda size: {"type": "string", "maxLength": size}, st.integers(0, 2)),
    st.builds(
        lambda values: {"enum": values}, st.lists(st.sampled_from(["a", "bb", 1, 2, None]), min_size=1, unique=True)
    ),
    st.sampled_from([{"type": ["string", "null"]}, {"type": ["integer", "boolean"]}, {"const": "a"}, {}]),
)


def _larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.sampled_from(["p", "q", "r"])
    return st.one_of(
        st.builds(
            lambda properties, required, more: {
                "type": "object",
                "properties": properties,
                "required": sorted(required),
                **({} if more is None else {"additionalProperties": more}),
            },
            st.dictionaries(names, inner, max_size=3),
            st.sets(names, max_size=2),
            st.sampled_from([None, False, True]),
        ),
        st.builds(lambda items, most: {"type": "array", "items": items, "maxItems": most}, inner, st.integers(0, 2)),
        st.builds(
            lambda word, parts: {word: parts},
            st.sampled_from(["anyOf", "oneOf", "allOf"]),
            st.lists(inner, min_size=1, max_size=2),
        ),
    )


schemas = st.recursive(scalars, _larger, max_leaves=5)


leaves = st.sampled_from(["", "a", "bb", "ccc", -3, 0, 1, 2, 5, 1.5, True, None])


values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.sampled_from(["p", "q", "r"]), inner, max_size=3)
    ),
    max_leaves=4,
)
