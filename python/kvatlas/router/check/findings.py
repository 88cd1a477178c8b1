"""Findings of a check: one line for each test, with what to change."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from kvatlas.router.check.ask import Engine as HttpEngine
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
    """Engine under test, with what is known about it.

    Attributes:
        entry: The engine's settings.
        report: What was found.
        http: The client of its HTTP interface.
        models: The names that it serves, those of models before those of adapters.
        found: Where its events are; None if they are not followed or not found.
        until: When its check has to end, by the clock of the event loop.
        is_stuck: Whether its check was ended because a request had no answer.
    """

    entry: Engine
    report: EngineReport
    http: HttpEngine
    models: list[str] = field(default_factory=list)
    found: EngineDescription | None = None
    until: float = 0.0
    is_stuck: bool = False

    @property
    def model(self) -> str:
        """The name that requests use."""
        return self.models[0]
