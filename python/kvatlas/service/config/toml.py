"""Reader of TOML files that keeps the line of each key."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from kvatlas.errors import ConfigError


def read_toml(path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """Read a TOML file. Returns its content and the line of each key.

    Raises:
        ConfigError: The file cannot be read or is not TOML.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"cannot read {path}: it is not UTF-8 text") from error
    return parse_toml(text, path)


def parse_toml(text: str, path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """Parse TOML. Returns its content and the line of each key.

    Raises:
        ConfigError: The text is not TOML.
    """
    try:
        return tomllib.loads(text), _lines(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error


_HEADER = re.compile(r"\s*(\[\[?)\s*([\w.\"' -]+?)\s*\]")
_ASSIGNMENT = re.compile(r"\s*([\w.\"' -]+?)\s*=")


def _lines(text: str) -> dict[str, int]:
    """Find the lines of keys by their paths, for messages.

    The TOML parser does not report lines, so this scans the common forms of files.
    """
    lines: dict[str, int] = {}
    counts: dict[str, int] = {}
    prefix = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            name = header[2].strip("\"'")
            lines.setdefault(name, number)
            if header[1] == "[[":
                at = counts.get(name, 0)
                counts[name] = at + 1
                name = f"{name}.{at}"
                lines.setdefault(name, number)
            prefix = f"{name}."
        elif assignment := _ASSIGNMENT.match(line):
            lines.setdefault(prefix + assignment[1].strip("\"'"), number)
    return lines
