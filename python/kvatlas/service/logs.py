"""Logs of `kvatlas serve` on stderr: lines for people, or JSON for programs."""

from __future__ import annotations

import datetime as dt
import json
import logging
import re
import sys
from typing import TextIO

from kvatlas.service.config import LogConfig

# The formats of the native part's log, because both are one service's.


_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def _time(record: logging.LogRecord) -> str:
    at = dt.datetime.fromtimestamp(record.created, dt.UTC)
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _level(record: logging.LogRecord) -> str:
    return {"WARNING": "WARN", "CRITICAL": "ERROR"}.get(record.levelname, record.levelname)


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {"timestamp": _time(record), "level": _level(record), "message": record.getMessage()}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        # Messages may contain engines' answers with line breaks: one record stays one line.
        message = _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", record.getMessage())
        line = f"{_time(record)} {_level(record):>5} {message}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def configure(config: LogConfig, stream: TextIO | None = None) -> logging.Handler:
    """Send the logs of kvatlas, but not of other libraries, to a stream, by default stderr."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_Json() if config.format == "json" else _Text())
    logger = logging.getLogger("kvatlas")
    logger.addHandler(handler)
    logger.setLevel(config.level.upper())
    logger.propagate = False
    return handler


def write_lines(*lines: str) -> None:
    """Write lines to stderr in one piece, because other threads, including native ones, log there too."""
    sys.stderr.write("\n".join(lines) + "\n")
    sys.stderr.flush()
