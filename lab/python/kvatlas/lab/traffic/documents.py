"""Reader of concatenated JSON documents, each on one line or over several lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def documents(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Iterate over documents, each with the number of its first line. Other text is passed on line by line.

    A document over several lines begins and ends with a bracket at the beginning of a line. At most one document is in
    memory.
    """
    kept: list[str] = []
    first = 0
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text:
            continue
        if kept and text[0] in "{[" and not line[0].isspace():
            # The one before never ended.
            yield first, "".join(kept)
            kept = []
        if not kept:
            if not (text[0] in "{[" and text[-1] not in "}]"):
                yield number, text
                continue
            first = number
        kept.append(line)
        if line[0] in "}]":
            yield first, "".join(kept).rstrip().rstrip(",")
            kept = []
    if kept:
        yield first, "".join(kept)
