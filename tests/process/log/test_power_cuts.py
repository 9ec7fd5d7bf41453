"""Whatever a loss of power leaves of the files, the log opens, and everything it acknowledged is there.

Somebody who was told `stored` expects it after a power cut, too. Sequences of operations run on real nodes while their
file operations are recorded; from the record come the states in which a disk may be: writes since the last sync
dropped, kept, torn, or any pieces of them; names of files kept or dropped. Each state is opened and compared.

A few sequences here; `make power-cuts` takes every sequence of up to three operations and prints how many states it
has seen (`POWER_CUTS=100` takes so many, `POWER_CUTS=400:800` those with these numbers: a long campaign in pieces).
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from tests.support.power_cuts import OPERATIONS, Entry, broken_promises, build_recorder, record, sequences, states

CHOSEN = os.environ.get("POWER_CUTS", "")
A_FEW = 5
AT_ONCE = 40  # sequences that one process runs


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler (cc) to build the recorder of file operations")
    return build_recorder(tmp_path_factory.mktemp("recorder"))


def look(entries: list[Entry], sequence: tuple[str, ...], folder: Path, most: int | None) -> int:
    """Open the states, at most so many of them; how many."""
    chance = random.Random(repr(sequence))
    in_order = CHOSEN == "all" or ":" in CHOSEN  # so that shorter sequences are tried, too
    found = list(states(entries, chance, begun=len(sequence) if in_order and len(sequence) > 1 else 0))
    if most is not None and len(found) > most:
        found = chance.sample(found, most)
    for files, told in found:
        place = folder / "state"
        broken = broken_promises(files, told, place)
        assert not broken, (sequence, broken, sorted((name, len(content)) for name, content in files.items()))
        shutil.rmtree(place, ignore_errors=True)
    return len(found)


def choose(wanted: str) -> list[tuple[str, ...]]:
    """The sequences that are run: `all`, so many, or those from one number to another; a few if nothing is said."""
    chance, every = random.Random(15), list(sequences())
    if not wanted:
        return [OPERATIONS[:3], *chance.sample(every, A_FEW - 1)]
    if ":" in wanted:
        first, end = map(int, wanted.split(":"))
        return every[first:end]
    return every if wanted == "all" else chance.sample(every, int(wanted))


def test_every_sync_of_a_commit_is_there(tmp_path: Path, recorder: Path) -> None:
    """Each commit that was acknowledged has synced the write-ahead log before."""
    (entries,) = record(tmp_path, [("publish", "publish", "publish")], recorder)
    synced = True
    for entry in entries:
        if entry.path.endswith("-wal"):
            synced = entry.kind == "s"
        elif entry.path == "acks" and b'"stored"' in entry.data:
            assert synced


def test_nothing_acknowledged_is_lost(tmp_path: Path, recorder: Path) -> None:
    chosen = choose(CHOSEN)
    count = 0
    for start in range(0, len(chosen), AT_ONCE):
        some = chosen[start : start + AT_ONCE]
        folder = tmp_path / f"{start}"
        folder.mkdir()
        for sequence, entries in zip(some, record(folder, some, recorder), strict=True):
            count += look(entries, sequence, tmp_path, None if CHOSEN else 20)
        shutil.rmtree(folder)
        if CHOSEN:
            print(f"{start + len(some)} of {len(chosen)} sequences, {count} states", flush=True)
    assert count >= len(chosen)


def test_pieces_of_a_campaign_are_the_whole_of_it() -> None:
    pieces = [choose(f"{start}:{start + 700}") for start in range(0, 2_800, 700)]
    assert [each for piece in pieces for each in piece] == choose("all") == list(sequences())
    assert len(choose("100")) == 100


def test_a_disk_that_ignores_syncs_is_noticed(tmp_path: Path, recorder: Path) -> None:
    """The opposite: without the syncs of the write-ahead log these states do lose what was acknowledged."""
    (entries,) = record(tmp_path, [("publish", "batch", "publish")], recorder)
    without = [entry for entry in entries if not (entry.kind == "s" and entry.path.endswith("-wal"))]
    broken = 0
    for files, told in list(states(without, random.Random(1)))[-12:]:
        broken += bool(broken_promises(files, told, tmp_path / "state"))
        shutil.rmtree(tmp_path / "state", ignore_errors=True)
    assert broken
