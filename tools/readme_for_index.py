"""The README as a package index shows it: links to files of the repository are addresses.

A metadata hook of hatchling: it runs whenever the package is built or installed from its source.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#|mailto:)([^)\s]+)\)")


def absolute(text: str, source: str, version: str) -> str:
    """The text with its links into the repository made absolute; images as files, everything else as pages."""

    def address(found: re.Match[str]) -> str:
        view = "raw" if found[1] else "blob"
        return f"{found[1]}[{found[2]}]({source}/{view}/v{version}/{found[3]})"

    return _LINK.sub(address, text)


class CustomMetadataHook(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        shown = absolute(text, metadata["urls"]["Source"], metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": shown}
