"""Standard input as a file, for commands that read a file more than once."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

from kvatlas.errors import TraceError

_NAME = "standard input"
_PIECE = 1 << 16  # bytes
_LOOK = 0.2  # seconds


@contextmanager
def as_file(path: Path) -> Iterator[Path]:
    """A context with `path` itself, or for `-` with a copy of standard input that is deleted afterwards.

    Errors about the copy, `TraceError`, name standard input.
    """
    if str(path) != "-":
        yield path
        return
    with TemporaryDirectory(prefix="kvatlas-") as folder:
        copy = Path(folder) / _NAME
        with copy.open("wb") as file:
            file.writelines(_pieces(sys.stdin.buffer))
        try:
            yield copy
        except TraceError as error:
            raise TraceError(str(error).replace(str(copy), _NAME)) from error


def _pieces(stream: BinaryIO) -> Iterator[bytes]:
    """The content of a stream, in pieces.

    Ctrl-C ends the reading at any time, even if pressed just before a read begins.
    """
    try:
        number = stream.fileno()
    except OSError:
        yield stream.read()
        return
    while True:
        if select.select([number], [], [], _LOOK)[0]:
            if not (piece := os.read(number, _PIECE)):
                return
            yield piece
