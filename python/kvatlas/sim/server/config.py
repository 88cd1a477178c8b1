"""Configuration of a served engine, which can be sent to another process."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from kvatlas.errors import ConfigError
from kvatlas.sim.scheduler import EngineConfig
from kvatlas.sim.server.events import Dialect, Engine
from kvatlas.sim.server.faults import Faults
from kvatlas.sim.server.names import HashAlgorithm, Names, SglangNames, VllmNames
from kvatlas.sim.tiers import TierConfig
from kvatlas.sim.transfers import Transfer

ReplaySocket = Literal["current", "old", "none"]
Role = Literal["both", "prefill", "decode"]


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Settings of a served engine.

    Attributes:
        name: Name of the engine in its output; part of its random seed.
        dialect: The engine that it imitates, "vllm" or "sglang".
        arrays: Whether events are positional arrays, as engines wrote them before mid-2026.
        hash_bytes: Whether names are whole digests (vLLM only).
        hash_algorithm: Hash function of the names, "sha256" or "sha256_cbor" (vLLM only).
        hash_seed: Seed of its names for blocks; engines with the same seed, or none, name blocks alike.
        engine: The cache and its timing.
        speed: Seconds of the engine's time that pass in one real second.
        ranks: Data-parallel ranks, each with a cache and a stream of its own.
        model: Name of the served model.
        loras: Names of the served adapters.
        host: The address to bind.
        http_port: Port of its HTTP; 0 for any free one.
        events_port: Port of rank 0's live stream, rank r has this + r; 0 for any free ones.
        replay_port: Port of rank 0's replays, likewise.
        topic: Topic of the live stream.
        buffer_steps: Batches kept for replays.
        replay_socket: Replies to replays: "current", "old" (without a topic frame), or "none": there is no such socket.
        step: Least real seconds from one step to the next; a step's events are one batch.
        max_model_len: The longest prompt with its answer, in tokens.
        tiers: Tiers behind each rank's cache. A pool is set by `pool_folder` instead.
        pool_folder: A folder that engines share as a pool; "" without one.
        describes: Whether vLLM's offloading announces the tokens of blocks, or only their names, which is its default.
        announces_pool: Whether what is put into the pool is announced: vLLM's `enable_kv_events` of a tier.
        pool_locality: Whether events say that the pool is not the engine's own: vLLM's `locality` of a tier.
        dev_mode: Whether it tells its settings at `/server_info`, as vLLM does with `VLLM_SERVER_DEV_MODE`.
        pull_port: Port at which peers pull from rank 0; rank r has this + r. 0 for any free ones.
        role: "prefill" if it hands prompts over, "decode" if it takes them; "both" may do either, or neither.
        faults: Chances of its faults.
        seed: Seed of all random choices.
    """

    name: str = "engine-0"
    dialect: Engine = "vllm"
    arrays: bool = False
    hash_bytes: bool = False
    hash_algorithm: HashAlgorithm = "sha256_cbor"
    hash_seed: str | None = None
    engine: EngineConfig = field(default_factory=EngineConfig)
    speed: float = 1.0
    ranks: int = 1
    model: str = "sim-model"
    loras: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    http_port: int = 0
    events_port: int = 0
    replay_port: int = 0
    topic: str = ""
    buffer_steps: int = 10_000
    replay_socket: ReplaySocket = "current"
    step: float = 0.005
    max_model_len: int = 131_072
    tiers: TierConfig = field(default_factory=TierConfig)
    pool_folder: str = ""
    describes: bool = True
    announces_pool: bool = True
    pool_locality: bool = True
    dev_mode: bool = False
    pull_port: int = 0
    role: Role = "both"
    faults: Faults = field(default_factory=Faults)
    seed: int = 0

    def __post_init__(self) -> None:
        _one_of("dialect", self.dialect, get_args(Engine))
        if self.host not in ("*", "localhost"):
            try:
                ipaddress.ip_address(self.host)
            except ValueError:
                raise ConfigError(f"host must be an IP address, localhost or *, not {self.host!r}") from None
        _one_of("hash_algorithm", self.hash_algorithm, get_args(HashAlgorithm))
        _one_of("role", self.role, get_args(Role))
        _one_of("replay_socket", self.replay_socket, get_args(ReplaySocket))
        if self.hash_bytes and self.dialect != "vllm":
            raise ConfigError("hash_bytes requires the vllm dialect: SGLang always sends integers")
        for name in ("speed", "step"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name} must be above 0, got {value}")
        for name, low, high in (
            ("ranks", 1, 1024),
            ("buffer_steps", 1, 1 << 30),
            ("max_model_len", 1, 1 << 31),
            ("http_port", 0, 65_535),
            ("events_port", 0, 65_536 - self.ranks),
            ("replay_port", 0, 65_536 - self.ranks),
            ("pull_port", 0, 65_536 - self.ranks),
        ):
            if not low <= getattr(self, name) <= high:
                raise ConfigError(f"{name} must be from {low} to {high}, got {getattr(self, name)}")
        if 0 < abs(self.events_port - self.replay_port) < self.ranks and self.events_port and self.replay_port:
            raise ConfigError(f"events_port and replay_port must be at least {self.ranks} apart, one port per rank")
        if self.tiers.pool_tokens != 0:
            raise ConfigError("a served engine's pool is a folder: set pool_folder, not pool_tokens")
        if self.dialect != "vllm" and (self.tiers.pulls or self.pool_folder or self.tiers.chunk != 1):
            raise ConfigError("pulls, a pool_folder and chunks of several blocks require the vllm dialect")
        if self.model in self.loras:
            raise ConfigError(f"an adapter has the name of the model, {self.model!r}: give it another name")

    @property
    def wire(self) -> Dialect:
        """Encoding of the engine's events: the dialect, and whether events are arrays."""
        if self.dialect == "vllm":
            return "vllm-arrays" if self.arrays else "vllm"
        return "sglang-arrays" if self.arrays else "sglang"

    @property
    def longest(self) -> int:
        """Maximum tokens of a prompt with its answer: the configured limit, or else the size of the cache."""
        return min(self.max_model_len, self.engine.cache_tokens)

    def names(self) -> Names:
        """Make the function object that computes block hashes as this engine does."""
        if self.dialect == "vllm":
            return VllmNames(self.hash_seed, as_bytes=self.hash_bytes, algorithm=self.hash_algorithm)
        return SglangNames(self.hash_seed)

    def as_dict(self) -> dict[str, Any]:
        """The configuration as plain data, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ServerConfig:
        """Make a configuration from the result of `as_dict`."""
        rest = dict(data)
        engine, faults = EngineConfig(**rest.pop("engine")), Faults(**rest.pop("faults"))
        tiers = rest.pop("tiers")
        tiers |= {name: Transfer(**tiers[name]) for name in ("host", "pool", "pull")}
        return cls(
            **{**rest, "loras": tuple(rest["loras"])},
            engine=engine,
            faults=faults,
            tiers=TierConfig(**tiers),
        )


def _one_of(name: str, value: str, among: tuple[str, ...]) -> None:
    if value not in among:
        raise ConfigError(f"{name} must be one of {', '.join(among)}, not {value!r}")
