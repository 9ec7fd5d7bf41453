from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.serving import serving
from tests.support.terminal import Terminal, url_of


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """A terminal beside a node that the tests of one file share; each uses topics of its own."""
    with serving(tmp_path_factory.mktemp("node"), env={"BUS_ACK_TIMEOUT_MS": "5000"}) as node:
        yield Terminal(url_of(node))
