"""Commands in the test's own process: for what a command says and its exit code, where starting Python is the cost."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Mapping
from typing import NamedTuple
from unittest import mock

import pytest

from mainspring.cli import main


class Said(NamedTuple):
    stdout: str
    stderr: str


def mainspring(*arguments: str, code: int = 0, stdin: str = "", env: Mapping[str, str] | None = None) -> Said:
    """One command to its end: what it wrote, checked against the exit code."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, env or {}),
        mock.patch("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()))),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        main(list(arguments))
    assert (ended.value.code or 0) == code, out.getvalue() + err.getvalue()
    return Said(out.getvalue(), err.getvalue())
