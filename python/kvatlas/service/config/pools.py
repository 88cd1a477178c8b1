"""Entries for pools: stores into which several engines put blocks and from which they load."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from kvatlas.errors import ConfigError
from kvatlas.service.config.engines import Entry, Name, entry_field, parse_fields
from kvatlas.service.config.kinds import Choice, Directory, Integer, Names, Number, Switch, shown

_WANTED = (
    "a pool is NAME[,members=WORKER|WORKER...][,chunk=BLOCKS][,tier=cpu|disk|external][,announces_removals=true]"
    "[,lifetime=SECONDS][,budget=BYTES,chunk_bytes=BYTES][,directory=PATH][,look_every=SECONDS]"
)


@dataclass(frozen=True)
class Pool(Entry):
    """A store into which several engines put blocks and from which they load, such as a shared folder.

    Attributes:
        name: The pool's name.
        members: Names of the workers that may use the pool; None for all.
        chunk: Number of blocks in a chunk; None to use the members' answers or infer it from their stores.
        tier: The tier in members' events that stands for the pool: "cpu", "disk" or "external".
        announces_removals: True if members announce removals.
        lifetime: Seconds after which a block no longer counts unless announced again; None for no limit.
        budget: Capacity of the pool in bytes: beyond it, the blocks announced longest ago no longer count; None for no
            limit.
        chunk_bytes: Size of a chunk in bytes, for example the size of its file; required for `budget`.
        directory: A directory with a file for each chunk, as vLLM's `fs` tier has one: chunks whose file was deleted
            no longer count.
        look_every: Seconds between two inspections of the directory.
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
    look_every: float = entry_field(Number(0.01, 1e6), 30.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.budget is None) != (self.chunk_bytes is None):
            raise ConfigError(f"{self._called()}: budget and chunk_bytes belong together: set both, or none")
        if self.budget is not None and self.chunk_bytes is not None and self.budget < self.chunk_bytes:
            raise ConfigError(f"{self._called()}: budget is less than a chunk, {self.chunk_bytes:,} bytes")

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
        return about_it | {
            "members": None if self.members is None else list(self.members),
            "room": None if budget is None else budget // chunk_bytes * (self.chunk or 1),
            "directory": None if self.directory is None else str(self.directory),
        }


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
