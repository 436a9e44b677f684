"""Text that came from elsewhere, such as a name in a file, made safe to print."""

from __future__ import annotations


def escape(text: str) -> str:
    """`text` with a backslash escape for every character that moves a cursor, breaks a line or cannot be seen."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
