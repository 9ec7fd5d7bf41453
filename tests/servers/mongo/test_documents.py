"""Whatever JSON a program sends, in whatever spelling, the collection gives it back byte for byte."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.log import Append, Batch, Receipt
from mainspring.log.engines.mongo import MongoEngine
from tests.support.mongo_server import new_database

texts = st.text(max_size=8) | st.sampled_from(["$set", "a.b", "", "\x00", "_id", "removed", "2026-01-02", "é😀"])
scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | texts
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
SPELLINGS: list[dict[str, Any]] = [
    {"separators": (",", ":"), "ensure_ascii": False},
    {"separators": (",", ":")},
    {},
    {"indent": 1, "ensure_ascii": False},
]


def spelled(value: Any, spelling: dict[str, Any]) -> bytes:
    return json.dumps(value, **spelling).encode("utf-8", "backslashreplace")


payloads = st.builds(spelled, values, st.sampled_from(SPELLINGS)) | st.binary(max_size=12)


@pytest.mark.parametrize("given_headers", [False, True])
def test_any_payload_and_any_headers(given_headers: bool) -> None:
    address = new_database()
    topics = iter(range(1_000_000))

    @settings(max_examples=15)
    @given(texts=st.lists(payloads, min_size=5, max_size=30))
    def check(texts: list[bytes]) -> None:
        asyncio.run(store_and_read(address, f"t{next(topics)}", texts))

    async def store_and_read(address: str, topic: str, texts: list[bytes]) -> None:
        events = [
            Append(topic, 0, "id", 1, b"1" if given_headers else text, headers=text if given_headers else None)
            for text in texts
        ]
        writer, reader = MongoEngine(address), MongoEngine(address)
        await writer.open()
        (result,) = await writer.commit([Batch(list(events))])
        assert isinstance(result, Receipt)
        await writer.close()
        await reader.open()  # has nothing in memory
        found = await reader.read(topic, 0, 1, 1000)
        assert [event.headers if given_headers else event.payload for event in found] == texts
        await reader.close()

    check()
