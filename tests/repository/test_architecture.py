"""The files and functions that ARCHITECTURE.md and CONTRIBUTING.md lead to are there, and call each other."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# A file, and in brackets the functions in it.
NAMED = re.compile(r"`(crates/[^`]+\.rs)` \((`[a-z_]+`(?:, `[a-z_]+`)*)")


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_a_page_names_files_that_are_there(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = re.findall(r"`((?:crates|lab|trees|python|tests|tools|docs)/[^`*]*\.(?:rs|py|md))`", text)
    assert named
    assert [name for name in named if "NAME" not in name and not (ROOT / name).exists()] == []


def test_the_functions_to_begin_with_are_in_their_files() -> None:
    text = " ".join((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").split())
    named = NAMED.findall(text)
    assert len(named) > 20
    for path, functions in named:
        source = (ROOT / path).read_text(encoding="utf-8")
        missing = [name for name in re.findall(r"\w+", functions) if not re.search(rf"\bfn {name}\b", source)]
        assert missing == [], path


def bodies(source: str, name: str) -> str:
    """Give the bodies of all functions of a name in a Rust file, one after the other."""
    found = []
    for start in re.finditer(rf"\bfn {name}\b", source):
        at = source.find("{", start.end())
        # An array's length is separated from its type by a semicolon.
        if at < 0 or ";" in re.sub(r"\[[^\[\]]*\]", "", source[start.end() : at]):
            continue  # only declared
        depth = 0
        for position in range(at, len(source)):
            depth += (source[position] == "{") - (source[position] == "}")
            if depth == 0:
                found.append(source[at:position])
                break
    return "\n".join(found)


@pytest.mark.parametrize("heading", ["A batch of KV events", "A chat request"])
def test_each_function_of_a_walk_is_called_by_one_before_it(heading: str) -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = page.partition(f"\n## {heading}")[2].partition("\n## ")[0]
    walk = " ".join(section.partition("\n\nThe verdict")[0].split())
    assert walk
    before, uncalled = "", []
    for path, functions in NAMED.findall(walk):
        source = re.sub(r"//[^\n]*", "", (ROOT / path).read_text(encoding="utf-8"))
        for name in re.findall(r"\w+", functions):
            if before and not re.search(rf"\b{name}(?:::<[^>]*>)?\(", before):
                uncalled.append(f"{path}: {name}")
            before += bodies(source, name)
    assert uncalled == []
