"""A live chat: a page without a build step, the JavaScript client, and a node that serves both.

    mainspring serve examples.live_chat:app

Then open http://127.0.0.1:7070/chat/ in two windows. What is said is an event of a topic: on disk before the others
see it, there for whoever joins later, and checked against `Said` before it is stored, whichever way it came. The pages
talk to the node's WebSocket and need no code here; this program says what the topics hold and serves the page.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from mainspring import App

app = App("chat")
app.pages("/chat", Path(__file__).parent / "page")
app.topic("chat.said", retention_count=1_000)
app.topic("chat.presence", retention="1m")

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=40)]


@app.schema("chat.said")
class Said(msgspec.Struct, forbid_unknown_fields=True):
    """Somebody said something."""

    name: Name
    text: Annotated[str, msgspec.Meta(min_length=1, max_length=2_000)]


@app.schema("chat.presence")
class Presence(msgspec.Struct, forbid_unknown_fields=True):
    """A tab has joined, is still here, or has left. Whoever hears that one has joined says that it is here."""

    visitor: Name
    name: Name
    state: Literal["joined", "here", "left"]
