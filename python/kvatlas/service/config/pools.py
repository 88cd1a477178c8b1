"""Entries for pools: stores into which several engines put blocks and from which they load."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from kvatlas._http import checked_url
from kvatlas.errors import ConfigError
from kvatlas.service.config.engines import Entry, Name, entry_field, parse_fields
from kvatlas.service.config.kinds import Choice, Directory, Integer, Names, Number, Switch, Text, shown

_WANTED = (
    "a pool is NAME[,members=WORKER|WORKER...][,chunk=BLOCKS][,tier=cpu|disk|external][,announces_removals=true]"
    "[,lifetime=SECONDS][,budget=BYTES,chunk_bytes=BYTES][,evicts=used|announced][,directory=PATH]"
    "[,mooncake=URL][,events=tcp://HOST:PORT][,key_prefix=TEXT][,objects=COUNT][,look_every=SECONDS][,lmcache=URL]"
    "[,lmcache_model=NAME][,lmcache_instance=ID][,lmcache_ranks=N][,lmcache_chunk=TOKENS][,lmcache_hash=ALGORITHM]"
    "[,lmcache_seed=SEED]"
)
_EVENTS = re.compile(r"tcp://\S+:[0-9]{1,5}|ipc://.+", re.DOTALL | re.ASCII)
_OF_A_STORE = ("events", "key_prefix", "objects")
_HASHES = ("blake3", "sha256", "sha256_cbor", "xxhash", "xxhash_cbor")


@dataclass(frozen=True)
class Pool(Entry):
    """A store into which several engines put blocks and from which they load, such as a shared folder.

    Attributes:
        name: The pool's name.
        members: Names of the workers that may use the pool; None for all.
        chunk: Number of blocks in a chunk; None to use the members' answers or infer it from their stores.
        tier: The tier in members' events that stands for the pool: "cpu", "disk" or "external". None for "cpu" with
            `mooncake`, as vLLM's connector names it, and "external" otherwise. For SGLang's engines, it is "external".
        announces_removals: True if members announce removals.
        lifetime: Seconds after which a block no longer counts unless announced again; None for no limit.
        budget: Capacity of the pool in bytes: beyond it, the blocks announced longest ago no longer count; None for no
            limit.
        chunk_bytes: Size of a chunk in bytes, for example the size of its file; required for `budget`.
        directory: A directory with a file for each chunk, as vLLM's `fs` tier has one: chunks whose file was deleted
            no longer count.
        look_every: Seconds between two inspections of the directory, of the store's keys or of LMCache's list; None for
            5 s with `lmcache`, and 30 s otherwise.
        evicts: "used" if the store evicts what was used longest ago: what engines load, as far as events show it, stays
            within `budget` and `lifetime` then. "announced" if loads make no difference.
        mooncake: `http://HOST:PORT` of the metrics of a Mooncake master, whose store the pool is: the master is asked
            for its keys, and what is not among them counts no more.
        events: `tcp://HOST:PORT` of the master's events, for a master that was built to publish them.
        key_prefix: Beginning of the pool's keys, up to the rank, such as `PREFIX@MODEL`, if the model's name alone does
            not tell it.
        objects: Objects that a block is in each cache group; what the keys show if not given.
        lmcache: URL of LMCache's coordinator, which lists the chunks in the pool.
        lmcache_model: The model's name in LMCache's keys; None for the name under which engines serve the model.
        lmcache_instance: The LMCache server of the members, whose own memory and disks belong to the pool, in addition
            to the chunks that all servers share; None for the shared chunks only.
        lmcache_ranks: Number of ranks of an engine (tensor times pipeline parallelism) that each have a part of a
            chunk; None to infer it from the list.
        lmcache_chunk: Number of tokens in a chunk of LMCache.
        lmcache_hash: Algorithm of LMCache's chunk hashes.
        lmcache_seed: Seed of chunk hashes by one of vLLM's algorithms (`PYTHONHASHSEED`).
    """

    name: str = field(metadata={"kind": Name()})
    members: tuple[str, ...] | None = entry_field(Names())
    chunk: int | None = entry_field(Integer(1, 1 << 20))
    tier: str = entry_field(Choice("cpu", "disk", "external"))
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
    evicts: str = entry_field(Choice("announced", "used"), "announced")
    mooncake: str | None = entry_field(Text())
    events: str | None = entry_field(Text())
    key_prefix: str | None = entry_field(Text())
    objects: int | None = entry_field(Integer(1, 64))

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.budget is None) != (self.chunk_bytes is None):
            raise ConfigError(f"{self._called()}: budget and chunk_bytes belong together: set both, or none")
        if self.budget is not None and self.chunk_bytes is not None and self.budget < self.chunk_bytes:
            raise ConfigError(f"{self._called()}: budget is less than a chunk, {self.chunk_bytes:,} bytes")
        if self.evicts == "used" and self.budget is None and self.lifetime is None:
            raise ConfigError(f"{self._called()}: evicts says what budget or lifetime keeps: set one of them")
        if self.tier is None:
            object.__setattr__(self, "tier", "external" if self.mooncake is None else "cpu")
        self._check_store()
        self._check_lmcache()

    def _check_store(self) -> None:
        if self.mooncake is None:
            given = [name for name in _OF_A_STORE if getattr(self, name) is not None]
            if given:
                raise ConfigError(
                    f"{self._called()}: {given[0]} is for a pool that is a store: set mooncake to its URL"
                )
            return
        if self.directory is not None:
            raise ConfigError(f"{self._called()}: a pool is a directory or a store: set directory or mooncake")
        try:
            object.__setattr__(self, "mooncake", checked_url(self.mooncake))
        except ValueError as error:
            raise ConfigError(f"{self._called()}: mooncake is http://HOST:PORT, but {error}") from None
        if self.events is not None and not _EVENTS.fullmatch(self.events):
            raise ConfigError(
                f"{self._called()}: events must be tcp://HOST:PORT or ipc://PATH, got {shown(self.events)}"
            )

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
        for name in ("chunk", "lifetime", "budget", "directory", "mooncake"):
            if getattr(self, name) is not None:
                instead = "lmcache_chunk" if name == "chunk" else "nothing: LMCache lists what is there"
                raise ConfigError(f"{self._called()}: {name} is for pools without lmcache; set {instead}")
        if self.lmcache_seed is not None and self.lmcache_hash == "blake3":
            raise ConfigError(f"{self._called()}: lmcache_seed is for vLLM's algorithms, and lmcache_hash is blake3")

    @property
    def seconds_between_looks(self) -> float:
        """Seconds between two looks at the directory or the store's keys, or between two listings of LMCache."""
        return self.look_every or (30.0 if self.lmcache is None else 5.0)

    def _called(self) -> str:
        return f"pool {shown(self.name)}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a pool from `NAME[,KEY=VALUE...]`."""
        name, *rest = text.split(",")
        if not name or "=" in name:
            raise ConfigError(f"pool {shown(text)}: {_WANTED}")
        kinds = {each.name: each.metadata["kind"] for each in dataclasses.fields(cls)[1:]}
        return cls(name, **parse_fields(rest, kinds, f"pool {shown(name)}", _WANTED))

    def for_native(self) -> dict[str, Any]:
        """The pool's settings in the form of the native service."""
        about_it = dataclasses.asdict(self)
        budget, chunk_bytes = about_it.pop("budget"), about_it.pop("chunk_bytes")
        lmcache = {name.removeprefix("lmcache_"): about_it.pop(name) for name in _ABOUT_LMCACHE}
        lmcache["chunk_tokens"] = lmcache.pop("chunk")
        return about_it | {
            "look_every": self.seconds_between_looks,
            "lmcache": None if self.lmcache is None else lmcache,
            "members": None if self.members is None else list(self.members),
            "evicts_used": about_it.pop("evicts") == "used",
            "room": None if budget is None else budget // chunk_bytes * (self.chunk or 1),
            "directory": None if self.directory is None else str(self.directory),
        }


_DEFAULTS = {each.name: each.default for each in dataclasses.fields(Pool)}
_ABOUT_LMCACHE = tuple(name for name in _DEFAULTS if name.startswith("lmcache_"))


def check_pools(pools: tuple[Pool, ...]) -> None:
    """Check that each pool has a different name, and that no worker has two pools on one tier.

    Raises:
        ConfigError: Two pools are in conflict; the message names them.
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
