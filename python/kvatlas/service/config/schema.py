"""All settings of the service, as frozen dataclasses.

Each field has its kind, flag and help, so that the command line, the environment, the file, the printed configuration
and the documentation are made from this one list.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from kvatlas.errors import ConfigError
from kvatlas.service.config.engines import ROUTING_FIELDS, Engine, Stream, check_names
from kvatlas.service.config.following import AdoptConfig, DiscoveryConfig, StreamConfig
from kvatlas.service.config.kinds import (
    FROM_0,
    File,
    Integer,
    Switch,
    Text,
    shown,
)
from kvatlas.service.config.pools import Pool, check_pools
from kvatlas.service.config.section import DEFAULT_GROUP, Key, Section, about, keys_of
from kvatlas.service.config.serving import HttpConfig, LimitsConfig, LogConfig
from kvatlas.service.config.sharing import RelayConfig, SitesConfig, SnapshotConfig

ROUTER_COMMAND = "kvatlas router"


@dataclass(frozen=True)
class Config(Section):
    """The whole configuration of a service. Durations are in seconds, sizes in bytes.

    Raises:
        ConfigError: A value has the wrong type or is out of range. The message names the setting and its valid values.
    """

    section: ClassVar[str] = ""
    command: ClassVar[str] = "kvatlas serve"
    """Command that has these settings as flags."""

    engines: tuple[Engine, ...] = ()
    static_streams: tuple[Stream, ...] = ()
    pools: tuple[Pool, ...] = ()
    engines_file: Path | None = field(
        default=None,
        metadata=about(
            File(), "--engines-file", "TOML file of engines and streams, reloaded when it changes.", reread="content"
        ),
    )
    allow_empty: bool = field(
        default=False,
        metadata=about(
            Switch(),
            "--allow-empty",
            "Take an engines file that has become empty at its word, and remove its engines. Otherwise they are kept: "
            "a file that is being written, or was cut off, is empty too.",
        ),
    )
    model: str | None = field(
        default=None,
        metadata=about(Text(), "--model", "Model name for all engines and streams, instead of the one engines report."),
    )
    block_size: int | None = field(
        default=None,
        metadata=about(
            Integer(1, 1 << 20),
            "--block-size",
            "Tokens per block for all engines and streams, instead of what engines report.",
        ),
    )
    routing_group: str = field(
        default=DEFAULT_GROUP, metadata=about(Text(), "--routing-group", "Routing group of the engines.")
    )
    drain_timeout: float = field(
        default=10.0,
        metadata=about(
            FROM_0, "--drain-timeout", "Time that open requests get to finish when the service stops.", reread="value"
        ),
    )
    drain_delay: float = field(
        default=0.0,
        metadata=about(
            FROM_0,
            "--drain-delay",
            "Time for which a stopping service reports not ready but still accepts requests.",
            reread="value",
        ),
    )
    http: HttpConfig = field(default_factory=HttpConfig)
    streams: StreamConfig = field(default_factory=StreamConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    adopt: AdoptConfig = field(default_factory=AdoptConfig)
    snapshot: SnapshotConfig = field(default_factory=SnapshotConfig)
    relay: RelayConfig = field(default_factory=RelayConfig)
    sites: SitesConfig = field(default_factory=SitesConfig)
    discovery: DiscoveryConfig = field(default_factory=DiscoveryConfig)
    log: LogConfig = field(default_factory=LogConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, kind in SECTIONS.items():
            if name and not isinstance(getattr(self, name), kind):
                raise ConfigError(f"{name} must be {kind.__name__}, got {type(getattr(self, name)).__name__}")
        if self.allow_empty and self.engines_file is None:
            raise ConfigError("allow_empty is for the file of engines: set engines_file, or leave it out")
        object.__setattr__(self, "engines", tuple(map(Engine.of, self.engines)))
        object.__setattr__(self, "static_streams", tuple(map(Stream.of, self.static_streams)))
        object.__setattr__(self, "pools", tuple(map(Pool.of, self.pools)))
        check_pools(self.pools)
        check_names(self.engines, self.static_streams, shared=self.sends_requests)
        for engine in self.engines:
            self.check_engine(engine)
            for name, why in self.without_effect(engine).items():
                raise ConfigError(f"engine {shown(engine.shown_url)}: {name} {why}")
        for stream in self.static_streams:
            stream.check(model=self.model, block_size=self.block_size)
        kept = [f"snapshot.{name}" for name in ("dir", "peer") if getattr(self.snapshot, name) is not None]
        if self.streams.keyed_identity == "on" and kept:
            raise ConfigError(
                f"streams.keyed_identity and {kept[0]} are both set: snapshots need content hashes, "
                "because the key is lost when the service stops"
            )
        for name in ("publish", "source"):
            if self.streams.keyed_identity == "on" and getattr(self.relay, name) is not None:
                raise ConfigError(
                    f"streams.keyed_identity and relay.{name} are both set: services that share a log need one key: "
                    "set relay.key_file instead"
                )
        keys = {
            "streams.keyed_identity": self.streams.keyed_identity == "on",
            "relay.key_file": self.relay.key_file,
            "relay.key": self.relay.key,
        }
        for name in (name for name, is_set in keys.items() if is_set and self.sites.url is not None):
            raise ConfigError(
                f"{name} and sites.url are both set: digests need content hashes, which other sites compute alike"
            )

    @property
    def sends_requests(self) -> bool:
        """True if the command sends requests to the engines."""
        return False

    @property
    def objectives(self) -> str:
        """API group and version of the InferenceObjectives that set requests' priorities; empty for none."""
        return ""

    @property
    def follows_events(self) -> bool:
        """True if this process receives the engines' events."""
        return True

    def check_engine(self, engine: Engine) -> None:
        """Check that the command can use an engine's settings.

        Raises:
            ConfigError: A setting of the engine is invalid for the command.
        """

    def without_effect(self, engine: Engine) -> dict[str, str]:
        """The settings of an engine that have no effect in this command, each with the reason.

        They are refused if set for this command, and logged if they come from the engines file, which several commands
        may share.
        """
        return {
            name: f"is for {ROUTER_COMMAND}, which sends requests: leave it out"
            for name in ROUTING_FIELDS
            if getattr(engine, name) is not None
        }

    def for_native(self, holds: tuple[str, ...] = (), *, log: bool = False) -> dict[str, Any]:
        """The configuration in the form of the native service: each section by its name."""
        self.sites.bearer()  # an error in the file is one now
        sections = ("http", "streams", "adopt", "snapshot", "relay", "sites", "log")
        native = {name: getattr(self, name).for_native() for name in sections}
        native["streams"]["limits"] = self.limits.for_native()
        native["streams"]["pools"] = [pool.for_native() for pool in self.pools]
        if not log:
            native["log"]["level"] = "off"
        return {**native, "holds": list(holds)}


SECTIONS: dict[str, type[Section]] = {
    "": Config,
    "http": HttpConfig,
    "streams": StreamConfig,
    "limits": LimitsConfig,
    "adopt": AdoptConfig,
    "snapshot": SnapshotConfig,
    "relay": RelayConfig,
    "sites": SitesConfig,
    "discovery": DiscoveryConfig,
    "log": LogConfig,
}


def all_keys() -> tuple[Key, ...]:
    """All settings with a single value, in the order of the sections."""
    return tuple(key for section in SECTIONS.values() for key in keys_of(section))
