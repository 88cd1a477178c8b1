"""Journal of a sweep: one line of JSON for each point, written as soon as it is measured.

The journal makes a sweep resumable: a repeated sweep requests the same points in the same order, and points in the
journal are not measured again. Two points are equal if plan, design, options, machine, versions and the number of the
repeat are equal.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvatlas.errors import JournalError


class Journal:
    """Points measured so far, saved in the file `path` if one is given."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._known: dict[str, dict[str, Any]] = {}
        if path is not None and path.exists():
            for key, result in _read(path):
                self._known[key] = result

    def __len__(self) -> int:
        return len(self._known)

    def find(self, key: dict[str, object]) -> dict[str, Any] | None:
        """The recorded result of an equal point, or None."""
        return self._known.get(_text(key))

    def add(self, key: dict[str, object], result: dict[str, Any]) -> None:
        """Save the result of a point. It is on disk when this method returns. Raises `OSError`."""
        self._known[_text(key)] = result
        if self.path is None:
            return
        line = json.dumps({"key": key, "result": result}, separators=(",", ":")) + "\n"
        with self.path.open("a", encoding="utf-8") as file:
            if file.tell() and not _ends_with_newline(self.path):
                file.write("\n")  # a line that was torn when the machine stopped
            file.write(line)
            file.flush()
            os.fsync(file.fileno())


def _text(key: dict[str, object]) -> str:
    return json.dumps(key, sort_keys=True)


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _read(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    bad = 0
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for line in lines:
        try:
            row = json.loads(line)
            key, result = row["key"], row["result"]
            if not (isinstance(key, dict) and isinstance(result, dict)):
                raise TypeError
        except (ValueError, TypeError, KeyError):
            bad += 1
            continue
        yield _text(key), result
    # A crash leaves a torn line or two; more bad lines mean that the file is not a journal.
    if bad > 2 and bad > len(lines) // 2:
        raise JournalError(f"{path} does not contain points of a sweep: choose another file, or remove it")
