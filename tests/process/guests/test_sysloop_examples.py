"""The example guests do what they say."""

from __future__ import annotations

import subprocess
import sys

from tests.support.loop_server import serving
from tests.support.paths import ROOT

EXAMPLES = ROOT / "examples"


def test_the_echo_guest_serves_many_sockets_at_once() -> None:
    with serving() as served:
        command = [sys.executable, str(EXAMPLES / "sysloop_echo.py"), str(served.path), "300"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.stderr == ""
        assert done.stdout.splitlines()[1:] == ["300 of 300 clients got their echo"]
        assert served.eventually(lambda: served.server.guests == 0)
