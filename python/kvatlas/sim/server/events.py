"""From an engine's cache to its events: what it announces, in the words of either engine.

The pool works alike for both; the announcements differ. vLLM sends each physical copy's store and each removal as an
event of its own. SGLang's tree holds one copy of a block, so a second copy is not announced and a removal only when the
last copy went; neighbouring stores of one chain are one event, neighbouring removals too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Engine = Literal["vllm", "sglang"]
Dialect = Literal["vllm", "sglang", "vllm-arrays", "sglang-arrays"]


@dataclass(slots=True)
class Stored:
    """Blocks that are held now: names as sent, the name before them, and the tokens they hold."""

    names: list[int | bytes]
    parent: int | bytes | None
    tokens: list[int]
    lora: str | None
    salt: str | None


@dataclass(slots=True)
class Removed:
    """Names given up, one copy each."""

    names: list[int | bytes]


@dataclass(slots=True)
class Cleared:
    """Everything forgotten."""


Event = Stored | Removed | Cleared


@dataclass(slots=True)
class Batch:
    """Events waiting for the end of the step, merged as the engine would."""

    engine: Engine
    events: list[Event] = field(default_factory=list)

    def store(self, event: Stored) -> None:
        last = self.events[-1] if self.events else None
        if (
            self.engine == "sglang"
            and isinstance(last, Stored)
            and (last.names[-1], last.lora, last.salt) == (event.parent, event.lora, event.salt)
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
        if isinstance(last, Removed):
            last.names += names
        else:
            self.events.append(Removed(list(names)))

    def clear(self) -> None:
        self.events.append(Cleared())

    def take(self) -> list[Event]:
        """The events so far; none are left."""
        events, self.events = self.events, []
        return events
