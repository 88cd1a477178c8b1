"""Standard input as a file, for commands that read a file more than once."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from kvatlas.errors import TraceError

_NAME = "standard input"


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
            shutil.copyfileobj(sys.stdin.buffer, file)
        try:
            yield copy
        except TraceError as error:
            raise TraceError(str(error).replace(str(copy), _NAME)) from error
