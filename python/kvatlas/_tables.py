"""Tables for a terminal that keep words whole when the terminal is narrow."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich import box
from rich.cells import cell_len
from rich.table import Table

_LEAST = 12  # characters to which a name is cut, over several lines, if nothing else helps


def make_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    *,
    left: Collection[int] = (0,),
    wrap: Collection[int] = (),
    title: str | None = None,
    styles: Sequence[str | None] = (),
    expendable: Sequence[int] = (),
) -> Table:
    """Make a table of plain text, at most `width` characters wide.

    Headers break between words, and so do the cells of the columns in `wrap`; other cells do not break. Columns in
    `left` are flush left, and the first to break within words if the table is too wide otherwise. Before a word breaks,
    columns in `expendable` are left out, one after the other. `styles`: the style of each row.
    """
    kept = list(range(len(columns)))
    for gone in expendable:
        if sum(_least(columns, rows, wrap)[number] for number in kept) <= width - len(kept) - 1:
            break
        kept.remove(gone)
    columns, rows = [columns[number] for number in kept], [[row[number] for number in kept] for row in rows]
    left, wrap = ({kept.index(number) for number in some if number in kept} for some in (left, wrap))
    room = width - len(columns) - 1  # the box takes one before, between and behind columns
    widths = _widths(columns, rows, room, left, wrap)
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0) if sum(widths) + len(columns) <= room else 0,
        pad_edge=False,
    )
    for number, (column, its) in enumerate(zip(columns, widths, strict=True)):
        table.add_column(column, justify="left" if number in left else "right", width=its, overflow="fold")
    for number, row in enumerate(rows):
        table.add_row(*row, style=styles[number] if number < len(styles) else None)
    return table


def _widths(
    columns: Sequence[str], rows: Sequence[Sequence[str]], room: int, left: Collection[int], wrap: Collection[int]
) -> list[int]:
    """The width of each column; their sum is at most `room` where possible."""
    natural = [
        max(map(cell_len, (column, *(line for row in rows for line in row[number].split("\n")))))
        for number, column in enumerate(columns)
    ]
    whole = _least(columns, rows, wrap)
    names = [min(least, _LEAST) if number in left else least for number, least in enumerate(whole)]
    widths = natural
    for least in (whole, names):
        while sum(widths) > room and widths != least:
            spare = [its - fewest for its, fewest in zip(widths, least, strict=True)]
            widest = max(range(len(widths)), key=spare.__getitem__)
            widths = [its - (number == widest) for number, its in enumerate(widths)]
    return widths


def _least(columns: Sequence[str], rows: Sequence[Sequence[str]], wrap: Collection[int]) -> list[int]:
    """The minimum width of each column that keeps words whole, in characters."""
    whole = []
    for number, column in enumerate(columns):
        lines = [line for row in rows for line in row[number].split("\n")]
        parts = [word for line in lines for word in line.split()] if number in wrap else lines
        whole.append(max(map(cell_len, ("", *column.split(), *parts))))
    return whole
