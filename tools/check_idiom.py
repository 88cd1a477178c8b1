"""Checks the idiom of comments and pages, and that types have one name: python -m tools.check_idiom.

Reads the Rust, Python and Markdown files that git tracks below the current directory. Fails on

- more phrases of `PHRASES` in an area's comments, docstrings and pages than `tools/check_idiom.toml` allows for it;
- two types of one name in `crates/*/src`, unless it is `Config` or `Error` or the file lists it.

Both lists may only shrink: `--lower` writes the present counts into the file wherever they are below the allowed ones,
and takes out names that are unique now. Not looked at are code, strings, quotations in back quotes, and what is
generated in pages, which is strings of the code.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tools import check_words

# Each has a plainer form: `nobody reads it` is "unused", `for so many seconds` is "time, in seconds".
PHRASES = re.compile(
    r"\b(?:nobody|somebody|whoever|so\s+many|(?<!no )such(?!\s+as\b)"
    r"|told\s+of|is\s+of(?!\s+(?:the\s+wrong|type)\b)|that\s+of|(?<!each )of\s+which)\b",
    re.IGNORECASE,
)
BUDGET = Path(__file__).with_suffix(".toml")
FREE_NAMES = frozenset(["Config", "Error"])
COMMENT = re.compile(r"\s*//[/!]? ?(.*)")
QUOTED = re.compile(r"`[^`\n]*`")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
GENERATED = re.compile(r"^<!-- generated: (\w+) -->$.*?^<!-- end of generated: \1 -->$", re.MULTILINE | re.DOTALL)
TESTS = re.compile(r"^#\[cfg\((?:all\()?(?:test|loom)\b.*?\nmod \w+ \{", re.MULTILINE)
COPIED = Path("python/kvatlas/_native.pyi")  # its docstrings are those of crates/python
SUFFIXES = frozenset([".md", ".py", ".pyi", ".rs"])


class Place(NamedTuple):
    """A phrase or a type's name, and where it stands."""

    path: Path
    line: int
    text: str


def area(path: Path) -> str:
    """Name the area of a file: a crate, a top directory, or `.` for a file beside them."""
    parts = path.parts[:-1]
    return "/".join(parts[:2] if parts[:1] == ("crates",) else parts[:1]) or "."


def blank(found: re.Match[str]) -> str:
    """Replace a quotation by its line breaks, so that later lines keep their numbers."""
    return "\n" * found[0].count("\n")


def texts(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """Give the comments, docstrings or pages of a file, each with the number of its first line."""
    if path.suffix == ".md":
        yield 1, FENCE.sub(blank, GENERATED.sub(blank, text))
        return
    if path.suffix == ".rs":
        lines: list[tuple[int, str]] = []
        for number, line in enumerate(text.splitlines(), 1):
            if found := COMMENT.fullmatch(line):
                lines.append((number, found[1]))
    else:
        lines = check_words.read_python(text).comments
    start, block = 0, list[str]()
    for number, line in lines:
        if block and number == start + len(block) and "\n" not in line:
            block.append(line.removeprefix("#"))
            continue
        if block:
            yield start, "\n".join(block)
        start, block = number, line.removeprefix("#").split("\n")
    if block:
        yield start, "\n".join(block)


def phrases(path: Path, text: str) -> Iterator[Place]:
    """List the phrases of a file that should have a plainer form."""
    for start, block in texts(path, text):
        plain = QUOTED.sub("``", block)
        for found in PHRASES.finditer(plain):
            yield Place(path, start + plain[: found.start()].count("\n"), " ".join(found[0].split()))


def types(path: Path, text: str) -> Iterator[Place]:
    """List the types that a Rust file of the workspace declares outside its tests."""
    product = path.parts[0] == "crates" and path.parts[2:3] == ("src",)
    if product and path.suffix == ".rs" and not {"tests", "tests.rs"}.intersection(path.parts):
        for number, line in enumerate(TESTS.split(text)[0].splitlines(), 1):
            if found := check_words.TYPE.match(line):
                yield Place(path, number, found[1])


def lowered(allowed: dict[str, int], counts: Counter[str], shared: set[str]) -> str:
    """Write the budget's file with the smaller of the allowed and the present counts."""
    rows = [f'"{name}" = {min(most, counts[name])}' for name, most in sorted(allowed.items()) if counts[name]]
    names = [f'    "{name}",' for name in sorted(shared)]
    return "\n".join(["[phrases]", *rows, "", "[types]", "shared = [", *names, "]", ""])


def main() -> int:
    """Check all tracked files. Returns the exit status."""
    parser = argparse.ArgumentParser(description="Checks the idiom of comments and that types have one name.")
    parser.add_argument("--lower", action="store_true", help="write what is less now into tools/check_idiom.toml")
    options = parser.parse_args()
    git = shutil.which("git") or "git"
    tracked = subprocess.run([git, "ls-files", "-z"], capture_output=True, text=True, check=True).stdout
    paths = [
        path for path in map(Path, tracked.split("\0")) if path.suffix in SUFFIXES and path != COPIED and path.is_file()
    ]
    budget = tomllib.loads(BUDGET.read_text(encoding="utf-8"))
    allowed: dict[str, int] = budget["phrases"]
    found: list[Place] = []
    named: list[Place] = []
    for path in paths:
        text = path.read_text(encoding="utf-8")
        found += phrases(path, text)
        named += types(path, text)
    counts = Counter(area(place.path) for place in found)
    over = {name for name, count in counts.items() if count > allowed.get(name, 0)}
    for place in found:
        if area(place.path) in over:
            print(f"{place.path}:{place.line}: {place.text!r} in a comment or page; say it plainer")
    for name in sorted(over):
        print(
            f"{name}: {counts[name]} phrases that should be said plainer, {allowed.get(name, 0)} allowed",
            file=sys.stderr,
        )
    uses = Counter(place.text for place in named)
    shared = set(budget["types"]["shared"])
    twice = {name for name, count in uses.items() if count > 1} - FREE_NAMES
    for place in named:
        if place.text in twice - shared:
            print(f"{place.path}:{place.line}: type {place.text}: another type of the workspace has this name")
    if options.lower:
        BUDGET.write_text(lowered(allowed, counts, shared & twice), encoding="utf-8")
    print(f"{len(found)} phrases, {len(twice)} names of several types", file=sys.stderr)
    return 1 if over or twice - shared else 0


if __name__ == "__main__":
    sys.exit(main())
