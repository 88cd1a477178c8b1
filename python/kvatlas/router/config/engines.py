"""Settings of the connections to engines, and of the checks of their health."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from kvatlas.errors import ConfigError
from kvatlas.service.config.kinds import ABOVE_0, FROM_0, File, Integer, Text, shown
from kvatlas.service.config.section import Section, about

_COUNT = Integer(1, 1 << 30)


@dataclass(frozen=True)
class UpstreamConfig(Section):
    """Settings of the connections to engines."""

    section: ClassVar[str] = "upstream"

    connect_timeout: float = field(
        default=2.0,
        metadata=about(ABOVE_0, "--connect-timeout", "Time within which a connection to an engine must be open."),
    )
    first_byte_timeout: float = field(
        default=600.0,
        metadata=about(ABOVE_0, "--first-byte-timeout", "Time within which an engine must begin to answer."),
    )
    stall_timeout: float = field(
        default=300.0,
        metadata=about(ABOVE_0, "--stall-timeout", "Longest time between two pieces of an engine's answer."),
    )
    retries: int = field(
        default=2,
        metadata=about(
            Integer(0, 100),
            "--retries",
            "Number of times that a failed request is tried again, before any of its answer was sent. Once at most if "
            "an engine may have worked on it.",
        ),
    )
    idle_connections: int = field(
        default=256,
        metadata=about(_COUNT, "--upstream-connections", "Idle connections kept per engine and thread."),
    )
    idle_timeout: float = field(
        default=4.0,
        metadata=about(
            ABOVE_0, "--upstream-idle-timeout", "Time for which idle connections are kept. vLLM closes them after 5 s."
        ),
    )
    ca: Path | None = field(
        default=None,
        metadata=about(
            File(),
            "--upstream-ca",
            "Certificate authorities in PEM, for engines, --peer, --peer-snapshot, --index and --global with https.",
        ),
    )


@dataclass(frozen=True)
class HealthConfig(Section):
    """Settings of the health checks of engines."""

    section: ClassVar[str] = "health"

    path: str = field(default="/health", metadata=about(Text(), "--health-path", "Path of an engine's health check."))
    interval: float = field(
        default=5.0,
        metadata=about(FROM_0, "--health-interval", "Time between health checks of an engine. 0 means none."),
    )
    timeout: float = field(
        default=2.0,
        metadata=about(
            ABOVE_0,
            "--health-timeout",
            "Time within which an engine must answer a health check. One that has requests is busy after it, and keeps "
            "them; one that has none is down after twice that time.",
        ),
    )
    failures: int = field(
        default=3,
        metadata=about(
            Integer(1, 1000),
            "--health-failures",
            "Failures in a row after which an engine is left out: health checks, connections, and requests that "
            "another engine then answered.",
        ),
    )
    open: float = field(
        default=1.0,
        metadata=about(
            ABOVE_0,
            "--health-open",
            "Time for which a failing engine is left out at first. Doubles with each further failure.",
        ),
    )
    open_max: float = field(
        default=30.0,
        metadata=about(ABOVE_0, "--health-open-max", "Longest time for which a failing engine is left out."),
    )
    silence: float = field(
        default=60.0,
        metadata=about(
            FROM_0,
            "--health-silence",
            "Time after which an engine that has requests but sends nothing is left out. 0 means never.",
        ),
    )
    load_interval: float = field(
        default=1.0,
        metadata=about(
            FROM_0, "--load-interval", "Time between reads of an engine's metrics. 0 means that they are not read."
        ),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.path.startswith("/"):
            raise ConfigError(f"health.path must begin with /, got {shown(self.path)}")
        if self.open > self.open_max:
            raise ConfigError(f"health.open ({self.open:g} s) must not be above health.open_max ({self.open_max:g} s)")
