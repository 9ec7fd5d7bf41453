"""Every engine passes the one suite (see tests/support/fixtures/log.py for the engines)."""

from __future__ import annotations

from mainspring.testing.engine_contract import EngineContract


class TestContract(EngineContract):
    pass
