"""What a beat says about itself."""

from __future__ import annotations

from typing import Any

import msgspec

from mainspring.beats.storage.cells import from_text


class AgendaEntry(msgspec.Struct, frozen=True, gc=False):
    """One enzyme for one pair. `result` is ok, retry, failed, fatal or duplicate."""

    signal: str | None
    target: str | None
    enzyme: str
    result: str


class Staged(msgspec.Struct, frozen=True, gc=False):
    """One change the beat made visible; `op` is write or delete."""

    op: str
    path: str
    enzyme: str
    text: str | None = None

    @property
    def value(self) -> Any:
        """A fresh copy of the value written; None for a deletion."""
        return None if self.text is None else from_text(self.text)


class Emitted(msgspec.Struct, frozen=True, gc=False):
    """One signal the beat queued for a later one."""

    signal: str | None
    target: str | None
    beat: int


class Diagnostic(msgspec.Struct, frozen=True):
    """Something a person should know. `detail` is for people only: it is in no journal and no digest."""

    code: str
    signal: str | None = None
    target: str | None = None
    names: tuple[str, ...] = ()
    path: str | None = None
    detail: str = ""


class BeatReport(msgspec.Struct, frozen=True):
    """One beat. `digest` covers its inbox, results, values and emissions, and the digest of the beat before."""

    beat: int
    inbox: tuple[tuple[str | None, str | None], ...]
    agenda: list[AgendaEntry]
    staged: list[Staged]
    emitted: list[Emitted]
    diagnostics: list[Diagnostic]
    digest: str
    aborted: bool = False
