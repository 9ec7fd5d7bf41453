from __future__ import annotations

import os
from pathlib import Path

import pytest

from serving import clean_environment


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder without a node, a log or settings; the commands run there, and nothing of the tester's is seen."""
    for name in os.environ.keys() - clean_environment().keys():
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # the socket of somebody's node must not answer
    monkeypatch.chdir(tmp_path)
    return tmp_path
