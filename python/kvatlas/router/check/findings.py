"""Findings of a router's check of its engines: one line for each test, with advice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kvatlas.router.check.ask import Engine as HttpEngine
from kvatlas.router.check.codes import OK
from kvatlas.service.config import Engine
from kvatlas.service.discovery.connectors import Connectors
from kvatlas.service.discovery.probe import EngineDescription

Level = Literal["ok", "note", "warning", "problem"]

GLOBAL = "global"
"""Role in the report about the service above many sites, which is not an engine."""
STORE = "store"
"""Role in the report about the store of a pool."""
SETTINGS = "settings"
"""Role in the report about settings that do not concern an engine."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The finding of one test of an engine.

    Attributes:
        what: The name of the test: "reachable", "models", "events", "tokens", "index", "cache", ...
        level: "ok"; "note" (good to know); "warning" (works, but less well); "problem".
        words: The finding.
        change: Change to make; empty if none.
        code: The finding as one of `codes.CODES`; "ok" with level "ok".
    """

    what: str
    level: Level
    words: str
    change: str = ""
    code: str = OK


@dataclass(slots=True)
class EngineReport:
    """Findings about one engine.

    Attributes:
        worker: The engine's name.
        url: The engine's URL.
        role: "both", "prefill" or "decode"; for reports not about an engine, "global" (the service above sites),
            "store" (the store of a pool) or "settings".
        findings: The findings, in the order of the tests.
        models: Names of the models that the engine serves, the configured one first.
        adapters: Names of the LoRA adapters that the engine serves.
    """

    worker: str
    url: str
    role: str = "both"
    findings: list[Finding] = field(default_factory=list)
    models: list[str] = field(default_factory=list)
    adapters: list[str] = field(default_factory=list)

    def add(self, what: str, level: Level, words: str, change: str = "", *, code: str = OK) -> None:
        """Add a finding."""
        self.findings.append(Finding(what, level, words, change, code))

    def as_json(self) -> dict[str, Any]:
        """The report as a JSON object, with each finding as an item of "checks"."""
        return {
            "name": self.worker,
            "url": self.url,
            "role": self.role,
            "models": self.models,
            "adapters": self.adapters,
            "checks": [
                {"check": one.what, "outcome": one.level, "code": one.code, "why": one.words, "change": one.change}
                for one in self.findings
            ],
        }

    @property
    def problems(self) -> list[Finding]:
        """The findings that require a change."""
        return [finding for finding in self.findings if finding.level == "problem"]

    @property
    def is_of_engine(self) -> bool:
        """True if the report is about an engine."""
        return self.role not in (GLOBAL, STORE, SETTINGS)


@dataclass(frozen=True, slots=True)
class OffloadedBlocks:
    """Blocks that an engine announced on tiers beyond its device during the check.

    Attributes:
        blocks: Number of blocks on each tier: "cpu", "disk" and "external".
        named: Number of blocks announced without tokens.
        chunks: Number of blocks in a chunk of each tier, inferred from the store events.
    """

    blocks: Mapping[str, int] = field(default_factory=dict)
    named: int = 0
    chunks: Mapping[str, int] = field(default_factory=dict)

    def has(self, tier: str) -> bool:
        """True if the engine announced any block on a tier."""
        return self.blocks.get(tier, 0) > 0


@dataclass(slots=True)
class CheckedEngine:
    """Engine under test, with the results so far.

    Attributes:
        entry: The engine's settings.
        report: The report about the engine.
        http: The client of the engine's HTTP interface.
        found: Addresses of the engine's events; None if they are not followed or not found.
        until: Time at which the engine's check must end, by the clock of the event loop.
        is_stuck: True if the check was ended because a request had no answer.
        is_asleep: True if the engine reports that it sleeps; it then gets no prompts.
        connectors: The engine's answers about its tiers.
        announced: Blocks that the engine announced beyond its device; None if its events are not followed.
        block_names: The engine's block hashes of a prompt sent to all engines that pull from each other.
    """

    entry: Engine
    report: EngineReport
    http: HttpEngine
    found: EngineDescription | None = None
    until: float = 0.0
    is_stuck: bool = False
    is_asleep: bool = False
    connectors: Connectors = field(default_factory=Connectors)
    announced: OffloadedBlocks | None = None
    block_names: tuple[int, ...] = ()

    @property
    def models(self) -> list[str]:
        """Names of the models that the engine serves; empty if it did not answer."""
        return self.report.models

    @property
    def model(self) -> str:
        """Name of the model to use in requests to the engine."""
        return self.models[0]

    @property
    def names(self) -> set[str]:
        """All model names that requests to the engine may use: those that it serves, and those in its settings."""
        more = (*(self.entry.aliases or ()), *(self.entry.adapters or ()))
        return {*self.models, *self.report.adapters, *more}
