"""Which partition a key belongs to: byte-exact, because clients in other languages compute it too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.bus import key_hash, partition_of

VECTORS = json.loads((Path(__file__).parent / "partition.json").read_text())


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: ascii(vector["key"])[:30])
def test_recorded_keys_go_where_they_went(vector: dict[str, Any]) -> None:
    assert key_hash(vector["key"]) == vector["hash"]
    assert {n: partition_of(vector["key"], int(n)) for n in vector["partition"]} == vector["partition"]


def test_the_lowest_hash_has_an_absolute_value() -> None:
    assert key_hash("polygenelubricants") == -(2**31)
    assert partition_of("polygenelubricants", 10) == 8


def test_half_a_character_and_a_nul_have_a_hash_too() -> None:
    assert partition_of("\ud83d", 8) == 5
    assert partition_of("\0", 8) == 0


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_it_is_the_polynomial_over_utf_16_units(key: str) -> None:
    data = key.encode("utf-16-be", "surrogatepass")
    units = [int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), 2)]
    exact = sum(unit * 31 ** (len(units) - 1 - n) for n, unit in enumerate(units)) % 2**32
    assert key_hash(key) == (exact - 2**32 if exact >= 2**31 else exact)


@given(st.text(), st.integers(-3, 1))
def test_at_most_one_partition_is_partition_0(key: str, partitions: int) -> None:
    assert partition_of(key, partitions) == 0
