"""What a check finds: one line for each thing, good or bad, and what to change."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Level = Literal["ok", "note", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        what: Its name: "reachable", "models", "events", "tokens", "index", "cache", ...
        level: "ok"; "note" (good to know); "warning" (works, but less well); "problem".
        words: What was found.
        change: What to change; empty if there is nothing.
    """

    what: str
    level: Level
    words: str
    change: str = ""


@dataclass(slots=True)
class EngineReport:
    """What was found of one engine.

    Attributes:
        worker: The engine's name.
        url: Its URL.
        role: "both", "prefill" or "decode".
        findings: In the order in which they were looked at.
    """

    worker: str
    url: str
    role: str = "both"
    findings: list[Finding] = field(default_factory=list)

    def add(self, what: str, level: Level, words: str, change: str = "") -> None:
        """Note one."""
        self.findings.append(Finding(what, level, words, change))

    @property
    def problems(self) -> list[Finding]:
        """Those that are to be mended."""
        return [finding for finding in self.findings if finding.level == "problem"]
