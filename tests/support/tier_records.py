"""Recorded streams of engines with several tiers, as their records follow each other."""

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

PREFIX = "vllm-0.33.0-"
"""Beginning of the recordings' names."""


def records(folder: Path, engines: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The records of engines in the order of their common clock, each with its engine."""
    merged: list[tuple[float, int, str, dict[str, Any]]] = []
    for engine in engines:
        with gzip.open(folder / f"{PREFIX}{engine}.jsonl.gz", "rt", encoding="utf-8") as lines:
            for line in lines:
                record = json.loads(line)
                if "t" in record:
                    merged.append((record["t"], len(merged), engine, record))
    for _, _, engine, record in sorted(merged):
        yield engine, record
