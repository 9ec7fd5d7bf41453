"""Text of others, safe to show: no character in it moves a cursor, colours a screen or turns the direction of writing.

Names, ids, payloads and messages of errors come from whoever sent them. Shown as they are, one with an escape sequence
could repaint the screen of the person who looks, and one with a line feed could pretend to be another line.
"""

from __future__ import annotations


def plain(text: object, keep: str = "") -> str:
    """The text with everything that is not printable written as an escape, but for the characters in `keep`."""
    written = str(text)
    if written.isprintable():
        return written
    return "".join(
        each if each.isprintable() or each in keep else each.encode("unicode_escape").decode() for each in written
    )


def plain_lines(text: object) -> str:
    """The same for a text of several lines: those behind the first are indented, so that none can be taken for one
    that begins."""
    return plain(text, "\n\t").replace("\n", "\n    ")
