"""The whole configuration of a router: the settings of the service, which it embeds, and its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from kvatlas.errors import ConfigError
from kvatlas.router.config.engines import HealthConfig, UpstreamConfig
from kvatlas.router.config.placing import RouterSection
from kvatlas.router.config.serving import RouterHttpConfig
from kvatlas.service.config import Config, Engine, ResolvedConfig
from kvatlas.service.config.kinds import FROM_0, shown
from kvatlas.service.config.read import LISTS, POOLS, SECRETS, EntryKind, Schema, read_as, show_config
from kvatlas.service.config.schema import ROUTER_COMMAND, SECTIONS
from kvatlas.service.config.section import Section, about
from kvatlas.service.config.sources import PODS, POOL

DEFAULT_BLOCK_SIZE = 16
_FOLLOWS = (
    "is for a router that follows events itself: leave it out, or leave out router.index, router.global_url and "
    "router.no_events"
)


@dataclass(frozen=True)
class RouterConfig(Config):
    """The whole configuration of a router. Durations are in seconds, sizes in bytes.

    Raises:
        ConfigError: A value has the wrong type or is out of range. The message names it and says what is allowed.
    """

    command: ClassVar[str] = ROUTER_COMMAND

    drain_timeout: float = field(
        default=60.0,
        metadata=about(
            FROM_0, "--drain-timeout", "Time that open requests get to finish when the router stops.", reread="value"
        ),
    )
    http: RouterHttpConfig = field(default_factory=RouterHttpConfig)
    router: RouterSection = field(default_factory=RouterSection)
    upstream: UpstreamConfig = field(default_factory=UpstreamConfig)
    health: HealthConfig = field(default_factory=HealthConfig)

    def __post_init__(self) -> None:
        for name, kind in ROUTER_SECTIONS.items():
            if name and not isinstance(getattr(self, name), kind):
                raise ConfigError(f"{name} must be {kind.__name__}, got {type(getattr(self, name)).__name__}")
        super().__post_init__()
        if not self.follows_events and (self.snapshot.dir is not None or self.snapshot.peer is not None):
            raise ConfigError(
                "snapshot.dir and snapshot.peer are for a router that follows events itself: "
                "leave out router.index, router.global_url and router.no_events, or give them to the service at "
                "router.index"
            )
        if self.discovery.pod_deletion_cost and not self.follows_events:
            raise ConfigError(f"discovery.pod_deletion_cost {_FOLLOWS}")
        in_cluster = any(text.startswith((PODS, POOL)) for text in self.discovery.sources)
        if self.router.objectives and not in_cluster:
            raise ConfigError(
                "router.objectives are followed where the engines are: give a source k8s: or pool: (--discover), or "
                "leave it out"
            )
        if self.pools and not self.follows_events:
            raise ConfigError(f"[[pool]] {_FOLLOWS}, or give it to the service at router.index")
        if not self.follows_events:
            for section in ("streams", "limits", "adopt", "relay"):
                given, usual = getattr(self, section), SECTIONS[section]()
                for name in (each.name for each in dataclasses.fields(given)):
                    if getattr(given, name) != getattr(usual, name):
                        raise ConfigError(f"{section}.{name} {_FOLLOWS}")
        roles = {engine.role or "both" for engine in self.engines}
        for role, other in (("prefill", "decode"), ("decode", "prefill")):
            if role in roles and not roles & {other, "both"} and not (self.engines_file or self.discovery.sources):
                raise ConfigError(f"there are {role} engines but none for {other}: add --{other} URL")

    def check_engine(self, engine: Engine) -> None:
        if engine.shown_url != engine.url:
            raise ConfigError(
                f"engine {shown(engine.shown_url)}: the url must not hold a user or password: give the engine's key "
                "instead (--engine-key-file)"
            )

    def without_effect(self, engine: Engine) -> dict[str, str]:
        found = {}
        if not self.follows_events:
            names = ("events_port", "replay_port", "count_copies", "host_chunk")
            found = {name: _FOLLOWS for name in names if getattr(engine, name) is not None}
        if engine.routing_group not in (None, self.routing_group):
            found["routing_group"] = (
                f"must be that of the router, {shown(self.routing_group)}, which looks for blocks there only: leave it "
                "out, or set --routing-group"
            )
        return found

    @property
    def sends_requests(self) -> bool:
        """True for every router: it sends requests to engines, so a stream may have the name of an engine."""
        return True

    @property
    def objectives(self) -> str:
        """API group and version of the InferenceObjectives that set requests' priorities; empty for none."""
        return self.router.objectives

    @property
    def follows_events(self) -> bool:
        """True if the router receives the engines' events itself."""
        own = self.router
        return own.index is None and own.global_url is None and not own.no_events

    def engine_for_native(
        self, engine: Engine, ranks: Collection[int] = (), *, drained: bool | None = None
    ) -> dict[str, Any]:
        """An engine's settings in the form of the native router.

        Args:
            engine: The engine.
            ranks: The ranks whose streams the configuration gives.
            drained: True if the engine gets no new requests; None to leave this unchanged.
        """
        models = engine.models or ((engine.model,) if engine.model else ())  # without, it is asked
        about_it = {
            "name": engine.worker,
            "url": engine.url,
            "role": engine.role or "both",
            "weight": engine.weight or 1.0,
            "model": engine.model or self.model,
            "models": list(models),
            "aliases": list(engine.aliases or ()),
            "adapters": list(engine.adapters or ()),
            "block_size": engine.block_size or self.block_size,
            "ranks": list(engine.ranks) if isinstance(engine.ranks, tuple) else engine.ranks or sorted(ranks) or None,
            "drain": engine.drain if drained is None else drained,
        }
        names = ("capacity_blocks", "handover", "version", "bootstrap_port", "pull", "pull_group", "rank_header")
        about_it |= {name: getattr(engine, name) for name in (*names, "key", "use_key")}
        return {name: value for name, value in about_it.items() if value is not None}

    def ranks_by_hand(self, engine: Engine) -> list[int]:
        """The ranks of an engine whose streams are given in the configuration."""
        return [stream.rank for stream in self.static_streams if stream.worker == engine.worker]

    def router_for_native(
        self,
        tokenizer: str | None,
        tokenizers: Mapping[str, str],
        holds: tuple[str, ...] = (),
        *,
        engines: Iterable[dict[str, Any]] | None = None,
        log: bool = False,
    ) -> dict[str, Any]:
        """The configuration of the native router: JSON types, durations in seconds, files by their path.

        Args:
            tokenizer: `router.tokenizer` as a path, `engine`, or None.
            tokenizers: `router.tokenizers` in the same form, by model.
            holds: Conditions that the embedded service waits for before it is ready.
            engines: The engines at the start, in the form of `engine_for_native`; None for the configuration's.
            log: True if the native part writes a log.
        """
        service = self.for_native(holds, log=log)
        sections = {"http": service.pop("http")}
        sections |= {name: getattr(self, name).for_native() for name in ("upstream", "health")}
        sections["upstream"]["key"] = self.discovery.bearer()
        own = self.router.for_native() | {"tokenizer": tokenizer, "tokenizers": dict(tokenizers)}
        return {
            **sections,
            **own,
            "engines": [self.engine_for_native(engine, self.ranks_by_hand(engine)) for engine in self.engines]
            if engines is None
            else list(engines),
            "service": service if self.follows_events else None,
            "routing_group": self.routing_group,
            "block_size": self.block_size or DEFAULT_BLOCK_SIZE,
            "log": service["log"],
        }


class _InRole:
    """Parser of engine entries that sets the engine's role: prefill or decode."""

    def __init__(self, role: str) -> None:
        self._role = role

    def of(self, value: Any, /) -> Engine:
        engine = Engine.of(value)
        if engine.role not in (None, self._role):
            raise ConfigError(
                f"engine {shown(engine.shown_url)}: role is {engine.role!r}, but it is given as {self._role}"
            )
        return dataclasses.replace(engine, role=self._role)


ROUTER_SECTIONS: dict[str, type[Section]] = {
    "": RouterConfig,
    "http": RouterHttpConfig,
    "router": RouterSection,
    "upstream": UpstreamConfig,
    "health": HealthConfig,
    **{name: section for name, section in SECTIONS.items() if name not in ("", "http", "sites")},
}
ROUTER_LISTS: dict[str, tuple[str, str, EntryKind]] = {
    **LISTS,
    **POOLS,
    "prefill": ("--prefill", "KVATLAS_PREFILL", _InRole("prefill")),
    "decode": ("--decode", "KVATLAS_DECODE", _InRole("decode")),
}
ROUTER_SECRETS = SECRETS | {
    "router.index_key": ("KVATLAS_INDEX_KEY", "router.index_key_file"),
    "router.global_key": ("KVATLAS_GLOBAL_KEY", "router.global_key_file"),
    "router.peer_key": ("KVATLAS_PEER_KEY", "router.peer_key_file"),
}
ROUTER = Schema(
    RouterConfig,
    ROUTER_SECTIONS,
    ROUTER_LISTS,
    {"engine": "engines", "prefill": "engines", "decode": "engines", "stream": "static_streams", "pool": "pools"},
    ROUTER_SECRETS,
)
"""Declaration of all settings of `kvatlas router`."""


def read_router_config(
    flags: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    file: Path | str | None = None,
    usual: Mapping[str, str] | None = None,
) -> ResolvedConfig[RouterConfig]:
    """Read a router's configuration from flags, the environment and a file.

    It works like `kvatlas.service.read_config` for a service.

    Args:
        flags: Texts of flags by the settings' paths; lists for "engine", "prefill", "decode", "stream" and "pool".
        env: The environment variables; None for those of the process.
        file: The configuration file; None for the one that KVATLAS_CONFIG names, if any.
        usual: Texts of a command's defaults, by the settings' paths, which replace those of the settings.

    Raises:
        ConfigError: A name is unknown or a value is invalid; the message says which, where, and what is valid.
    """
    return read_as(ROUTER, flags, env, file, usual)


def show_router_config(resolved: ResolvedConfig[RouterConfig]) -> str:
    """The effective settings as TOML, each with its source; bearer keys are left out."""
    return show_config(resolved, ROUTER)
