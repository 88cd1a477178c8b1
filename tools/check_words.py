"""Checks that doc comments can be read alone and that types are called by nouns: python -m tools.check_words PATH...

Reads all Rust and Python files below the paths. Fails on

- a doc comment (`///`, `//!`, a docstring) whose first sentence has no subject, as far as its first word tells: a
  question word, a pronoun, a verb such as `Was`, or a preposition with no clause after it;
- a type whose name is a bare participle or in a list of names that say nothing;
- a comment with a word of a short list.

A comment `check_words: REASON` on the line before makes an exception. At most 1 % of doc comments may have one.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


def words(text: str) -> frozenset[str]:
    """Split a list of words."""
    return frozenset(text.split())


QUESTIONS = words("How What When Where Whether Which Who Whom Whose Why")
PRONOUNS = words("It Its That Their They Those")
VERBS = words(
    "Are Asked Came Can Could Did Gave Had Has Held Is Kept Made Must Said Should Told Took Was Went Were Would"
)
# Fine where a clause follows: "In a batch, the index …".
PREPOSITIONS = words("After As At Before Between By For From In Of On Since So To Until When With Within Without")
CLAUSE = re.compile(r"[,:;]")

NAMES = words(
    "Ahead Alike Alone Around At Before Best Both Busy Common Concurrent Desk Door Earlier Elsewhere "
    "Faulty Few Free Global Hands Hush Inside Irregular Known Large Late Lates Live Local Of Odd Other "
    "Plain Private Reading Remote Second Sparse Strange Swappable Thin Thinks To Told Unknown Untold "
    "Unusable Why Wide Wrong"
)
PARTICIPLE = re.compile(r"[A-Z][a-z]*(?:ed|en|ing)")
IRREGULAR = words(
    "Begun Bound Done Found Gone Got Held Kept Learnt Left Lost Made Met Read Said Sent Shown Told Withdrawn"
)
# Nouns of the field that end like participles, and the events that engines announce.
NOUNS = words(
    "Binding Children Cleared Coding Encoding Ending Feed Finding Framing Heading Listing Mapping Meaning Need Padding "
    "Ping Pricing Removed Ring Routing Screen Seed Serving Setting Speed Stored String Thing Timing "
    "Token Tracing Training Typing Warning"
)
WORDS = re.compile(r"\b(?:hush|lates|simply|basically)\b", re.IGNORECASE)

MARKER = re.compile(r"\s*(?://|#)\s*check_words: \S")
DOC_COMMENT = re.compile(r"\s*//([/!])(?!/) ?(.*)")
COMMENT = re.compile(r"\s*//")
TYPE = re.compile(r"\s*(?:pub(?:\([^)]*\))? )?(?:unsafe )?(?:struct|enum|union|trait) ([A-Za-z0-9_]+)")
DIRECTORIES = frozenset([".git", ".venv", "target", "node_modules"])
MOST_EXCEPTIONS = 0.01


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong, and where."""

    line: int
    text: str


@dataclass
class Source:
    """The parts of a file that are checked, each with the number of its line."""

    docs: list[tuple[int, str]] = field(default_factory=list)
    types: list[tuple[int, str]] = field(default_factory=list)
    comments: list[tuple[int, str]] = field(default_factory=list)


def read_rust(text: str) -> Source:
    """Find doc comments, types and comments in a Rust file, line by line."""
    source = Source()
    kind = ""
    for number, line in enumerate(text.splitlines(), 1):
        found = DOC_COMMENT.match(line)
        if COMMENT.match(line):
            source.comments.append((number, line))
        if found and found[1] == kind:
            first, doc = source.docs[-1]
            source.docs[-1] = (first, f"{doc}\n{found[2]}")
        elif found:
            source.docs.append((number, found[2]))
        elif declared := TYPE.match(line):
            source.types.append((number, declared[1]))
        kind = found[1] if found else ""
    return source


def read_python(text: str) -> Source:
    """Find docstrings, classes and comments in a Python file."""
    source = Source()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(doc))):
                source.docs.append((node.lineno, doc))
                source.comments.append((node.lineno, doc))
            case ast.ClassDef():
                source.types.append((node.lineno, node.name))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            source.comments.append((token.start[0], token.string))
    return source


def fault_of_doc(doc: str) -> str | None:
    """Say why a doc comment cannot be read alone, or None if it can as far as is known."""
    paragraph = " ".join(doc.strip().split("\n\n")[0].split())
    sentence = re.split(r"(?<=[.?!])\s", paragraph, maxsplit=1)[0]
    word = re.split(r"[^A-Za-z]", sentence, maxsplit=1)[0]
    if word in PREPOSITIONS and CLAUSE.search(sentence):
        return None
    for beginnings, kind in (
        (QUESTIONS, "a question word"),
        (PRONOUNS, "a pronoun"),
        (VERBS, "a verb without a subject"),
        (PREPOSITIONS, "a preposition, and no clause follows"),
    ):
        if word in beginnings:
            return f"begins with {kind}: {sentence!r}; begin with what the item is or does"
    return None


def fault_of_name(name: str) -> str | None:
    """Say why a type should be called otherwise, or None."""
    bare = name.lstrip("_")
    if bare in NAMES:
        return f"type {name}: the name does not say what the type is"
    if bare in IRREGULAR or (PARTICIPLE.fullmatch(bare) and bare not in NOUNS):
        return f"type {name}: a participle; a type is called by a noun"
    return None


def faults(source: Source) -> Iterator[Fault]:
    """Check a file, in the order of its parts."""
    for line, doc in source.docs:
        if text := fault_of_doc(doc):
            yield Fault(line, text)
    for line, name in source.types:
        if text := fault_of_name(name):
            yield Fault(line, text)
    for line, comment in source.comments:
        if word := WORDS.search(comment):
            yield Fault(line, f"the word {word[0]!r} in a comment")


def files(paths: list[Path]) -> Iterator[Path]:
    """List the Rust and Python files below the paths."""
    for path in paths:
        if path.is_file():
            yield path
            continue
        found = (file for suffix in ("rs", "py", "pyi") for file in path.rglob(f"*.{suffix}"))
        yield from sorted(file for file in found if not DIRECTORIES.intersection(file.relative_to(path).parts))


def main() -> int:
    """Check the files that the command line names. Returns the exit status."""
    parser = argparse.ArgumentParser(description="Checks the words of doc comments and the names of types.")
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="file, or directory with all below it")
    parser.add_argument("--only", choices=["sentences", "names"], help="only comments, or only the names of types")
    options = parser.parse_args()
    docs = exceptions = found = 0
    for path in files(options.paths):
        text = path.read_text(encoding="utf-8")
        source = read_rust(text) if path.suffix == ".rs" else read_python(text)
        if options.only == "names":
            source.docs, source.comments = [], []
        elif options.only == "sentences":
            source.types = []
        docs += len(source.docs)
        lines = ["", *text.splitlines()]
        for fault in faults(source):
            if MARKER.match(lines[fault.line - 1]):
                exceptions += 1
            else:
                found += 1
                print(f"{path}:{fault.line}: {fault.text}")
    print(f"{docs} doc comments, {found} faults, {exceptions} exceptions", file=sys.stderr)
    if exceptions > MOST_EXCEPTIONS * docs:
        print(f"too many exceptions: at most {MOST_EXCEPTIONS:.0%} of the doc comments may have one", file=sys.stderr)
        return 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
