"""Pieces of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def cell(text: str) -> str:
    """A text for one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    """A text in code style, also inside a table; nothing for nothing."""
    return f"`{cell(text)}`" if text else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells, which are Markdown already; empty if there are no rows."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    if not lines:
        return ""
    return "\n".join(["| " + " | ".join(head) + " |", "|" + " --- |" * len(head), *lines])


def join(parts: Iterable[str]) -> str:
    """Parts with a blank line between them, empty ones left out."""
    return "\n\n".join(part for part in parts if part)
