"""From a committed batch and its receipt to what other nodes must hear of it."""

from __future__ import annotations

from mainspring.log.contract import (
    ABSENT,
    Append,
    Appended,
    Batch,
    Change,
    Delete,
    KeptRecord,
    Put,
    Receipt,
    Remove,
)


def change_of(batch: Batch, receipt: Receipt, *, own: bool) -> Change:
    """What the batch changed. Events that follow each other in a partition are one `Appended`."""
    appended: list[Appended] = []
    records: list[KeptRecord] = []
    removed: list[Remove] = []
    offsets, versions = iter(receipt.offsets), iter(receipt.versions)
    for operation in batch.operations:
        if isinstance(operation, Append):
            partition, offset, duplicate = next(offsets)
            if not duplicate:
                _extend(appended, operation.topic, partition, offset)
        elif isinstance(operation, Put):
            records.append(KeptRecord(operation.space, operation.key, operation.value, next(versions)))
        elif isinstance(operation, Delete):
            records.append(KeptRecord(operation.space, operation.key, b"", ABSENT))
        elif isinstance(operation, Remove):
            removed.append(operation)
    return Change(own, tuple(appended), tuple(records), tuple(removed))


def _extend(appended: list[Appended], topic: str, partition: int, offset: int) -> None:
    last = appended[-1] if appended else None
    if last is not None and (last.topic, last.partition, last.last + 1) == (topic, partition, offset):
        appended[-1] = Appended(topic, partition, last.first, offset)
    else:
        appended.append(Appended(topic, partition, offset, offset))
