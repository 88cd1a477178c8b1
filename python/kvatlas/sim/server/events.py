"""Events of an engine's cache, as vLLM or SGLang announces them.

The simulated block pool is the same for vLLM and SGLang, but the events differ. vLLM sends an event for the store of
each physical copy and for each removal. SGLang's tree holds one copy of a block, so a second copy is not announced, and
a removal only after the last copy; consecutive stores of one chain are one event, as are consecutive removals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Engine = Literal["vllm", "sglang"]
Medium = Literal["GPU", "CPU", "STORAGE", "CPU_PINNED"]
"""Name of a tier in events: device memory, host memory ("CPU_PINNED" in SGLang's events) or a shared folder."""

Dialect = Literal["vllm", "sglang", "vllm-arrays", "sglang-arrays"]


@dataclass(slots=True)
class Stored:
    """Event: blocks were stored.

    `names` (block hashes) and `parent` (hash of the block before the first) are in the engine's format.
    """

    names: list[int | bytes]
    parent: int | bytes | None
    tokens: list[int]
    lora: str | None
    salt: str | None
    medium: Medium = "GPU"
    locality: str | None = None  # what is said of the tier's place


@dataclass(slots=True)
class Placeholder:
    """Event: chunks were stored; `names` has only the hash of each chunk's last block. vLLM's offloading default."""

    names: list[int | bytes]
    medium: Medium
    locality: str | None = None


@dataclass(slots=True)
class Removed:
    """Event: one copy of each of the blocks `names` was evicted."""

    names: list[int | bytes]
    medium: Medium = "GPU"


@dataclass(slots=True)
class Cleared:
    """Event: all blocks were dropped."""


Event = Stored | Placeholder | Removed | Cleared


@dataclass(slots=True)
class Batch:
    """Events of the current step; consecutive events are merged as the engine does."""

    engine: Engine
    events: list[Event] = field(default_factory=list)

    def store(self, event: Stored) -> None:
        last = self.events[-1] if self.events else None
        if (
            self.engine == "sglang"
            and isinstance(last, Stored)
            and (last.names[-1], last.lora, last.salt) == (event.parent, event.lora, event.salt)
            and last.medium == event.medium
        ):
            last.names += event.names
            last.tokens += event.tokens
            return
        self.events.append(event)

    def remove(self, names: Sequence[int | bytes]) -> None:
        if self.engine == "vllm":
            self.events.extend(Removed([name]) for name in names)
            return
        last = self.events[-1] if self.events else None
        if isinstance(last, Removed) and last.medium == "GPU":
            last.names += names
        else:
            self.events.append(Removed(list(names)))

    def store_placeholder(self, event: Placeholder) -> None:
        self.events.append(event)

    def remove_chunk(self, names: Sequence[int | bytes], medium: Medium) -> None:
        """Add the removal of a chunk's blocks from a tier behind the device."""
        self.events.append(Removed(list(names), medium))

    def clear(self) -> None:
        self.events.append(Cleared())

    def take(self) -> list[Event]:
        """Return the events added so far, and start an empty batch."""
        events, self.events = self.events, []
        return events
