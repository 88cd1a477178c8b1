"""Policies as users write them."""

from typing import Any


class First:
    """The first engine."""

    def choose(self, request: Any, candidates: Any) -> int:
        return 0


class Blind(First):
    """The first engine, without a look at the prompt."""

    uses_index = False


class Raises(First):
    """A policy with a mistake."""

    def choose(self, request: Any, candidates: Any) -> int:
        raise RuntimeError("a mistake")


class Outside(First):
    """An engine that does not exist."""

    def choose(self, request: Any, candidates: Any) -> int:
        return 99


class Awaits(First):
    """A coroutine instead of an engine."""

    async def choose(self, request: Any, candidates: Any) -> int:  # type: ignore[override]
        return 0
