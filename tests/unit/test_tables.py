"""Tables that fit."""

import io

import pytest
from rich.console import Console

from kvatlas._tables import make_table

COLUMNS = ("name", "a long header", "what it says")
ROWS = [("block-index-scores", "12.3 M", "a remark of several words"), ("dict", "1 k", "none")]


def printed(width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(make_table(COLUMNS, ROWS, width, left=(0, 2), wrap=(2,)))
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", range(35, 80))
def test_words_stay_whole(width: int) -> None:
    lines = printed(width)
    assert max(len(line.rstrip()) for line in lines) <= width
    text = "\n".join(lines)
    for word in ("name", "long", "header", "block-index-scores", "12.3 M", "1 k", "remark", "several", "words"):
        assert word in text


def test_a_wide_terminal_breaks_nothing() -> None:
    assert len([line for line in printed(120) if line.strip()]) == 4


def test_what_cannot_fit_is_folded_not_cut() -> None:
    text = "".join("".join(line.split()) for line in printed(30))
    assert "…" not in text
    assert "12.3M" in text


def test_an_empty_table() -> None:
    assert make_table(COLUMNS, [], 80).row_count == 0


@pytest.mark.parametrize(("width", "shown"), [(60, COLUMNS), (34, ("name", "a long header")), (26, ("name",))])
def test_expendable_columns_are_left_out_before_a_word_breaks(width: int, shown: tuple[str, ...]) -> None:
    table = make_table(COLUMNS, ROWS, width, left=(0, 2), wrap=(2,), expendable=(2, 1))
    assert tuple(column.header for column in table.columns) == shown
