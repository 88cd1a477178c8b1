"""Tables for a terminal, in which words stay whole when it is narrow."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich import box
from rich.table import Table

_WIDEST = 20  # characters of a name that are kept together, whatever it costs the other columns


def make_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: Collection[int] = (0,),
    wrap: Collection[int] = (),
    title: str | None = None,
    styles: Sequence[str | None] = (),
) -> Table:
    """A table of plain text.

    Headers break between words, and so do the cells of the columns in `wrap`; other cells do not break. Columns in
    `left` are flush left. `styles`: of the rows.
    """
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for number, column in enumerate(columns):
        cells = [line for row in rows for line in row[number].split("\n")]
        parts = [word for cell in cells for word in cell.split()] if number in wrap else cells
        whole = max((len(part) for part in (*column.split(), *parts)), default=0)
        table.add_column(
            column,
            justify="left" if number in left else "right",
            min_width=min(whole, _WIDEST) if number in left else whole,
            overflow="fold",
        )
    for number, row in enumerate(rows):
        table.add_row(*row, style=styles[number] if number < len(styles) else None)
    return table
