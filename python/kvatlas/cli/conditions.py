"""Descriptions of the conditions of engines, the same in all commands."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any


def condition_words(condition: Mapping[str, Any]) -> str:
    """A sentence about an engine's condition in `GET /workers`: name, reason, advice, duration, runbook."""
    since = datetime.fromtimestamp(float(condition.get("since", 0))).astimezone().strftime("%H:%M:%S")
    words = f"{condition['name']} since {since}: {condition['reason']}; {condition['advice']}"
    return f"{words}: {condition['runbook']}"
