"""Waiting for what should happen."""

import time
from collections.abc import Callable
from typing import Any

DEADLINE = 60.0
"""Long after which something that should happen has not, in seconds."""


def until(condition: Callable[..., Any], what: str = "so") -> Any:
    """Wait until the condition gives something, and return that."""
    end = time.monotonic() + DEADLINE
    while not (given := condition()):
        assert time.monotonic() < end, f"not {what} in time"
        time.sleep(0.005)
    return given
