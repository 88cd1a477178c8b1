"""The files and functions that ARCHITECTURE.md and CONTRIBUTING.md lead to are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_a_page_names_files_that_are_there(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = re.findall(r"`((?:crates|lab|trees|python|tests|tools|docs)/[^`*]*\.(?:rs|py|md))`", text)
    assert named
    assert [name for name in named if "NAME" not in name and not (ROOT / name).exists()] == []


def test_the_functions_to_begin_with_are_in_their_files() -> None:
    text = " ".join((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").split())
    named = re.findall(r"`(crates/[^`]+\.rs)` \((`[a-z_]+`(?:, `[a-z_]+`)*)", text)
    assert len(named) > 20
    for path, functions in named:
        source = (ROOT / path).read_text(encoding="utf-8")
        missing = [name for name in re.findall(r"\w+", functions) if not re.search(rf"\bfn {name}\b", source)]
        assert missing == [], path
