"""Which partition a key belongs to: the protocol's hash, the same in every language.

h starts at 0; for each UTF-16 code unit c, h = 31 h + c, wrapped to 32 bits and read as signed; the partition is |h|
modulo the number of partitions. It is Java's `String.hashCode`. Half surrogate pairs count as the units they are.
|-2^31| is 2^31, as in JavaScript. The empty key is a key; only an absent one is keyless.
"""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=65_536)  # keys repeat; hashing a 20-character key in Python costs as much as decoding its frame
def key_hash(key: str) -> int:
    """The signed 32-bit hash of a key."""
    h = 0
    if key.isascii():
        for unit in key.encode("ascii"):
            h = 31 * h + unit & 0xFFFFFFFF
    else:
        units = memoryview(key.encode("utf-16-le", "surrogatepass"))
        for at in range(0, len(units), 2):
            h = 31 * h + (units[at] | units[at + 1] << 8) & 0xFFFFFFFF
    return h - 0x1_0000_0000 if h & 0x8000_0000 else h


def partition_of(key: str, partitions: int) -> int:
    """The partition of `key` among `partitions`; 0 when there is at most one."""
    return abs(key_hash(key)) % partitions if partitions > 1 else 0
