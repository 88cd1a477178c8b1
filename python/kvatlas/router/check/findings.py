"""Findings of a check: one line for each test, with what to change."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from kvatlas.service.config import Engine
from kvatlas.service.discovery.probe import EngineDescription

Level = Literal["ok", "note", "warning", "problem"]

GLOBAL = "global"
"""Role in the report about the service above sites, which is not an engine."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Finding of one test.

    Attributes:
        what: The name of the test: "reachable", "models", "events", "tokens", "index", "cache", ...
        level: "ok"; "note" (good to know); "warning" (works, but less well); "problem".
        words: The finding.
        change: What to change; empty if nothing.
    """

    what: str
    level: Level
    words: str
    change: str = ""


@dataclass(slots=True)
class EngineReport:
    """Findings about one engine.

    Attributes:
        worker: The engine's name.
        url: Its URL.
        role: "both", "prefill" or "decode"; "global" for the service above sites, which is not an engine.
        findings: In the order in which they were looked at.
    """

    worker: str
    url: str
    role: str = "both"
    findings: list[Finding] = field(default_factory=list)

    def add(self, what: str, level: Level, words: str, change: str = "") -> None:
        """Add a finding."""
        self.findings.append(Finding(what, level, words, change))

    @property
    def problems(self) -> list[Finding]:
        """The findings that need a change."""
        return [finding for finding in self.findings if finding.level == "problem"]


@dataclass(slots=True)
class CheckedEngine:
    """Engine under test, with what is known about it."""

    entry: Engine
    report: EngineReport
    models: list[str]
    found: EngineDescription | None = None

    @property
    def model(self) -> str:
        """The name that requests use."""
        return self.models[0]
