"""The programs of Prometheus, and the files that these tests give them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
RULES = ROOT / "deploy/prometheus/kvatlas.rules.yml"
RULE_TESTS = ROOT / "deploy/prometheus/tests/kvatlas.test.yml"
TOOLS = ROOT / "target/prometheus/bin"  # where they may lie, besides the system's


def tool(name: str) -> str:
    """A program of Prometheus. Skips the test if it is not there."""
    path = shutil.which(str(TOOLS / name)) or shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed: apt-get install prometheus")
    return path
