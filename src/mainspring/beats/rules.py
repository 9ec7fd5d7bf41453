"""The rules a heartbeat is made with, checked once."""

from __future__ import annotations

import msgspec

from mainspring.errors import SettingError


class Rules(msgspec.Struct, frozen=True):
    """Everything that decides what a beat does besides its inbox, registry and bindings.

    The budgets stop runaways. What is over `max_signals_per_beat` or `max_runs_per_beat` waits for the next beat, so
    they are only large enough to keep one beat short; what is over the other two is dead-lettered, so they are far
    beyond what a healthy program does.
    """

    on_fatal: str = "isolate"
    strict: bool = False
    max_attempts: int = 5
    backoff_beats: tuple[int, ...] = (1,)
    max_signals_per_beat: int = 100_000
    max_runs_per_beat: int = 100_000
    max_emissions_per_enzyme: int = 100_000
    max_chain_depth: int = 1_000  # a signal that leads to itself is noticed within a second or so
    retain_beats: int | None = None  # every beat stays readable
    inline_chars: int = 4096  # a longer value costs one look-up more and is kept once
    slow_enzyme_ms: int = 0  # calls longer than this are reported while they last; 0 reports none

    def __post_init__(self) -> None:
        if self.on_fatal not in ("isolate", "abort_beat"):
            raise SettingError(f"on_fatal is 'isolate' or 'abort_beat', not {self.on_fatal!r}")
        for name in ("max_attempts", "max_signals_per_beat", "max_runs_per_beat"):
            _at_least(name, getattr(self, name), 1)
        for name in ("max_emissions_per_enzyme", "max_chain_depth", "inline_chars", "slow_enzyme_ms"):
            _at_least(name, getattr(self, name), 0)
        if self.retain_beats is not None:
            _at_least("retain_beats", self.retain_beats, 1)
        if not isinstance(self.backoff_beats, tuple) or not self.backoff_beats:
            raise SettingError("backoff_beats is a sequence of at least one number", remedy="write backoff_beats=(1,)")
        for beats in self.backoff_beats:
            _at_least("backoff_beats", beats, 1)

    @property
    def deciding(self) -> Rules:
        """Those of the rules that a journal depends on."""
        return msgspec.structs.replace(self, retain_beats=None, slow_enzyme_ms=0)

    def backoff(self, attempt: int) -> int:
        """How many beats a pair waits after its attempt k."""
        return self.backoff_beats[min(attempt, len(self.backoff_beats)) - 1]


def _at_least(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise SettingError(f"{name} is a whole number of at least {least}, not {value!r}")
