"""Pools: stores that several engines put blocks in and load from."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from kvatlas._http import checked_url
from kvatlas.errors import ConfigError
from kvatlas.service.config.engines import Entry, Name, entry_field, parse_fields
from kvatlas.service.config.kinds import Choice, Directory, Integer, Names, Number, Switch, Text, shown

_WANTED = (
    "a pool is NAME[,members=WORKER|WORKER...][,chunk=BLOCKS][,tier=cpu|disk|external][,announces_removals=true]"
    "[,lifetime=SECONDS][,budget=BYTES,chunk_bytes=BYTES][,directory=PATH][,look_every=SECONDS][,lmcache=URL]"
    "[,lmcache_model=NAME][,lmcache_instance=ID][,lmcache_ranks=N][,lmcache_chunk=TOKENS][,lmcache_hash=ALGORITHM]"
    "[,lmcache_seed=SEED]"
)

_HASHES = ("blake3", "sha256", "sha256_cbor", "xxhash", "xxhash_cbor")


@dataclass(frozen=True)
class Pool(Entry):
    """A store that several engines put blocks in and load from, such as a shared folder.

    Attributes:
        name: The pool's name.
        members: Names of the workers that may load from it; all if not given.
        chunk: Blocks in a chunk; what its members tell or their stores show if not given.
        tier: The tier by which its members' events call it: "cpu", "disk" or "external".
        announces_removals: Whether its members announce what is removed.
        lifetime: Seconds after which a block counts no more unless it was announced again; no limit if not given.
        budget: Bytes that it has room for: of more, what was announced longest ago counts no more; no limit if not
            given.
        chunk_bytes: Bytes of a chunk, such as the size of its file; needed for `budget`.
        directory: A directory with a file for each chunk, as vLLM's `fs` tier has it: what was deleted there counts no
            more.
        look_every: Seconds between two looks at the directory, or two listings of LMCache's; 30 and 5 if not given.
        lmcache: URL of LMCache's coordinator, which lists what is in the pool.
        lmcache_model: The model's name in LMCache's keys; the name that engines serve it under if not given.
        lmcache_instance: The LMCache server of the members, whose own memory and disks belong to the pool, besides what
            all servers share; only the latter if not given.
        lmcache_ranks: Ranks of an engine (tensor times pipeline parallelism) that each have a part of a chunk; what the
            listing shows if not given.
        lmcache_chunk: Tokens in a chunk of LMCache's.
        lmcache_hash: Algorithm of LMCache's chunk hashes.
        lmcache_seed: Seed of chunk hashes by one of vLLM's algorithms (`PYTHONHASHSEED`).
    """

    name: str = field(metadata={"kind": Name()})
    members: tuple[str, ...] | None = entry_field(Names())
    chunk: int | None = entry_field(Integer(1, 1 << 20))
    tier: str = entry_field(Choice("cpu", "disk", "external"), "external")
    announces_removals: bool = entry_field(Switch(), False)
    lifetime: float | None = entry_field(Number(0.001, 1e9))
    budget: int | None = entry_field(Integer(1, 1 << 60))
    chunk_bytes: int | None = entry_field(Integer(1, 1 << 40))
    directory: Path | None = field(default=None, metadata={"kind": Directory(), "routing": False})
    look_every: float | None = entry_field(Number(0.01, 1e6))
    lmcache: str | None = entry_field(Text())
    lmcache_model: str | None = entry_field(Text())
    lmcache_instance: str | None = entry_field(Text())
    lmcache_ranks: int | None = entry_field(Integer(1, 128))
    lmcache_chunk: int = entry_field(Integer(1, 1 << 20), 256)
    lmcache_hash: str = entry_field(Choice(*_HASHES), "blake3")
    lmcache_seed: str | None = entry_field(Text())

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.budget is None) != (self.chunk_bytes is None):
            raise ConfigError(f"{self._called()}: budget and chunk_bytes belong together: set both, or none")
        if self.budget is not None and self.chunk_bytes is not None and self.budget < self.chunk_bytes:
            raise ConfigError(f"{self._called()}: budget is less than a chunk, {self.chunk_bytes:,} bytes")
        self._check_lmcache()

    def _check_lmcache(self) -> None:
        if self.lmcache is None:
            for name in _ABOUT_LMCACHE:
                if getattr(self, name) != _DEFAULTS[name]:
                    raise ConfigError(f"{self._called()}: {name} is for pools that LMCache fills: set lmcache, too")
            return
        try:
            object.__setattr__(self, "lmcache", checked_url(self.lmcache))
        except ValueError as error:
            raise ConfigError(
                f"{self._called()}: lmcache must be http://HOST:PORT, got {self.lmcache}: {error}"
            ) from None
        for name in ("chunk", "lifetime", "budget", "directory"):
            if getattr(self, name) is not None:
                instead = "lmcache_chunk" if name == "chunk" else "nothing: LMCache lists what is there"
                raise ConfigError(f"{self._called()}: {name} is for pools without lmcache; set {instead}")
        if self.lmcache_seed is not None and self.lmcache_hash == "blake3":
            raise ConfigError(f"{self._called()}: lmcache_seed is for vLLM's algorithms, and lmcache_hash is blake3")

    @property
    def seconds_between_looks(self) -> float:
        """Seconds between two looks at the directory, or two listings."""
        return self.look_every or (30.0 if self.lmcache is None else 5.0)

    def _called(self) -> str:
        return f"pool {shown(self.name)}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Make a pool from `NAME[,KEY=VALUE...]`."""
        name, *rest = text.split(",")
        if not name or "=" in name:
            raise ConfigError(f"pool {shown(text)}: {_WANTED}")
        kinds = {each.name: each.metadata["kind"] for each in dataclasses.fields(cls)[1:]}
        return cls(name, **parse_fields(rest, kinds, f"pool {shown(name)}", _WANTED))

    def for_native(self) -> dict[str, Any]:
        """The pool as the native service takes it."""
        about_it = dataclasses.asdict(self)
        budget, chunk_bytes = about_it.pop("budget"), about_it.pop("chunk_bytes")
        lmcache = {name.removeprefix("lmcache_"): about_it.pop(name) for name in _ABOUT_LMCACHE}
        lmcache["chunk_tokens"] = lmcache.pop("chunk")
        return about_it | {
            "look_every": self.seconds_between_looks,
            "lmcache": None if self.lmcache is None else lmcache,
            "members": None if self.members is None else list(self.members),
            "room": None if budget is None else budget // chunk_bytes * (self.chunk or 1),
            "directory": None if self.directory is None else str(self.directory),
        }


_DEFAULTS = {each.name: each.default for each in dataclasses.fields(Pool)}
_ABOUT_LMCACHE = tuple(name for name in _DEFAULTS if name.startswith("lmcache_"))


def check_pools(pools: tuple[Pool, ...]) -> None:
    """Check that each pool has a name of its own, and that no worker has two on one tier.

    Raises:
        ConfigError: Two pools clash; the message names them.
    """
    for number, pool in enumerate(pools):
        for other in pools[:number]:
            if pool.name == other.name:
                raise ConfigError(f"two pools are named {shown(pool.name)}: give one of them another name")
            both = other.members is None or pool.members is None or set(other.members) & set(pool.members)
            if pool.tier == other.tier and both:
                raise ConfigError(
                    f"pools {shown(other.name)} and {shown(pool.name)} are both the tier {pool.tier} of some workers: "
                    "events do not say which of them they mean, so set other members or another tier"
                )
