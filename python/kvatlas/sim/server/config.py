"""Configuration of a simulated engine with sockets, which can be sent to another process."""

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
    """Settings of a simulated engine with sockets.

    Attributes:
        name: Name of the engine in its output; part of its random seed.
        dialect: The imitated engine, "vllm" or "sglang".
        arrays: True if events are positional arrays, as engines wrote them before mid-2026.
        hash_bytes: True if block hashes are whole digests, False for 64 bits (vLLM only).
        hash_algorithm: Function that computes block hashes, "sha256" or "sha256_cbor" (vLLM only).
        hash_seed: Seed of the block hashes; engines with the same seed, or without one, compute equal hashes.
        engine: Settings of the cache and of the model of time.
        speed: Seconds of the engine's time that pass in one real second.
        ranks: Number of data-parallel ranks, each with a cache and an event stream of its own.
        model: Name of the served model.
        loras: Names of the served LoRA adapters.
        host: The address to bind.
        http_port: Port of the HTTP server; 0 for any free port.
        events_port: Port of rank 0's live event stream; rank r has `events_port + r`. 0 for any free ports.
        replay_port: Port of rank 0's replays; rank r has `replay_port + r`. 0 for any free ports.
        topic: ZMQ topic of the live stream.
        buffer_steps: Number of event batches kept for replays.
        replay_socket: Format of the replies to replay requests: "current", "old" (without a topic frame), or "none" if
            there is no replay socket.
        step: Minimum real seconds between two steps; the events of a step are one batch.
        max_model_len: Maximum length of a prompt with its answer, in tokens, unless the cache is smaller.
        tiers: Tiers behind each rank's cache. A pool is set by `pool_folder` instead.
        pool_folder: A folder that engines share as a pool; "" for no pool.
        describes: True if vLLM's offloading announces the tokens of blocks, False if only their hashes, which is vLLM's
            default.
        announces_pool: True if chunks stored in the pool are announced: vLLM's `enable_kv_events` of a tier.
        pool_locality: True if events say that the pool is not the engine's own: vLLM's `locality` of a tier.
        dev_mode: True if the engine serves its settings at `/server_info`, as vLLM does with `VLLM_SERVER_DEV_MODE`.
        pull_port: Port at which peers pull from rank 0; rank r has `pull_port + r`. 0 for any free ports.
        role: "prefill" if the engine computes prompts for others, "decode" if it fetches computed prompts; "both" may
            do either, or neither.
        faults: Probabilities of the engine's faults.
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
        """Encoding of the engine's events: the imitated engine, and the form (maps or positional arrays)."""
        if self.dialect == "vllm":
            return "vllm-arrays" if self.arrays else "vllm"
        return "sglang-arrays" if self.arrays else "sglang"

    @property
    def longest(self) -> int:
        """Maximum number of tokens of a prompt with its answer: the configured limit, or else the size of the cache."""
        return min(self.max_model_len, self.engine.cache_tokens)

    def names(self) -> Names:
        """Create the object that computes block hashes as this engine does."""
        if self.dialect == "vllm":
            return VllmNames(self.hash_seed, as_bytes=self.hash_bytes, algorithm=self.hash_algorithm)
        return SglangNames(self.hash_seed)

    def as_dict(self) -> dict[str, Any]:
        """Convert the configuration to plain data, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ServerConfig:
        """Create a configuration from the result of `as_dict`."""
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
