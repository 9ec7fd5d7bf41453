from __future__ import annotations

import threading
from pathlib import Path

import pytest

from mainspring.log import (
    Append,
    Batch,
    BlockingLog,
    LogLocked,
    LogUnavailable,
    MemoryEngine,
    Put,
    Refused,
    SqliteEngine,
)


def test_the_blocking_face_does_what_the_other_does(tmp_path: Path) -> None:
    with BlockingLog(SqliteEngine(tmp_path / "log")) as log:
        assert log.commit(Batch([Append("t", 0, "a", 5, b"1"), Put("s", "k", b"v")])).offsets == ((0, 1, False),)
        assert [event.id for event in log.read("t", 0, 1, 10)] == ["a"]
        assert [outline.offset for outline in log.outline("t", 0, 1, 10)] == [1]
        assert log.topics() == ["t"]
        assert log.bounds("t")[0].tail == 1
        assert log.offset_at("t", 0, 6) == 2
        record = log.get("s", "k")
        assert record is not None
        assert record.value == b"v"
        assert log.spaces() == ["s"]
        with pytest.raises(Refused):
            log.commit(Batch([Put("s", "k", b"v", expect=0)]))
        log.trim("t", 0, 2)
        assert log.read("t", 0, 1, 10) == []
        assert log.forget_dedupe(1) == 0


def test_a_scan_longer_than_a_page_comes_entirely() -> None:
    with BlockingLog(MemoryEngine()) as log:
        log.commit(Batch([Put("s", f"{n:04}", b"") for n in range(1000)]))
        assert [record.key for record in log.scan("s", "0")] == [f"{n:04}" for n in range(1000)]


def test_threads_share_one_log() -> None:
    with BlockingLog(MemoryEngine()) as log:
        threads = [
            threading.Thread(target=lambda: [log.commit(Batch([Append("t", 0, "x", 1, b"1")])) for _ in range(20)])
            for _ in range(5)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert log.bounds("t")[0].tail == 100


def test_a_closed_log_says_so() -> None:
    log = BlockingLog(MemoryEngine())
    log.close()
    log.close()
    with pytest.raises(LogUnavailable):
        log.topics()


def log_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("mainspring-log")}


def test_a_log_that_cannot_open_leaves_no_thread_behind(tmp_path: Path) -> None:
    before = log_threads()
    with BlockingLog(SqliteEngine(tmp_path / "log")):
        inside = log_threads()
        assert inside > before
        with pytest.raises(LogLocked):
            BlockingLog(SqliteEngine(tmp_path / "log"))
        assert log_threads() <= inside
    assert log_threads() <= before
