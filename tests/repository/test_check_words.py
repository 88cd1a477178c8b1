"""The check of doc comments and of names finds what it is for, and nothing else."""

import sys
from pathlib import Path

import pytest
from tools import check_words

RUST = """\
//! Copies of ranks.

/// Whether it does.
pub struct Copies {
    /// True if the copy is whole.
    whole: bool,
    /// In a copy of a rank, the number of blocks.
    blocks: usize,
    /// Of all pieces.
    pieces: usize,
    // check_words: the tests need one
    /// Its name.
    name: String,
}

/// A holder
/// that was told.
pub(crate) enum Told {}

struct Counting;
struct Setting;
"""

PYTHON = '''\
"""Reads copies."""

class Told:
    """Was told."""

    def read(self) -> None:
        """Read a copy: what it holds."""
        # it simply reads
'''


def check(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["check_words", *map(str, arguments)])
    return check_words.main()


def lines(out: str, path: Path) -> list[int]:
    """Give the lines of the faults of a file, in order."""
    return sorted(int(line.removeprefix(f"{path}:").split(":")[0]) for line in out.splitlines())


@pytest.mark.parametrize(
    ("name", "text", "only", "wrong"),
    [
        ("copies.rs", RUST, None, [3, 9, 18, 20]),
        ("copies.rs", RUST, "names", [18, 20]),
        ("copies.py", PYTHON, None, [3, 4, 8]),
        ("copies.py", PYTHON, "sentences", [4, 8]),
    ],
)
def test_faults_are_found(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    text: str,
    only: str | None,
    wrong: list[int],
) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    assert check(monkeypatch, tmp_path, *([] if only is None else ["--only", only])) == 1
    assert lines(capsys.readouterr().out, path) == wrong


@pytest.mark.parametrize(("docs", "status"), [(99, 0), (98, 1)])
def test_at_most_one_doc_comment_in_a_hundred_is_an_exception(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, docs: int, status: int
) -> None:
    plain = "/// Number of copies.\nconst COPIES: usize = 1;\n" * docs
    (tmp_path / "copies.rs").write_text(f"{plain}// check_words: a proverb\n/// What is, is.\n", encoding="utf-8")
    assert check(monkeypatch, tmp_path) == status


@pytest.mark.parametrize(
    ("doc", "sound"),
    [
        ("What holds a block.", False),
        ("When it came.", False),
        ("When a rank goes, removes its blocks.", True),
        ("Did it?", False),
        ("Does one step.", True),
        ("Setting of a site.", True),
        ("Items.\n\nIt is said below.", True),
        ("From the first block to the last.", False),
    ],
)
def test_a_sentence_needs_a_subject(doc: str, sound: bool) -> None:
    assert (check_words.fault_of_doc(doc) is None) is sound
