"""Policies as users write them."""

from typing import Any


class First:
    """The first engine."""

    def choose(self, request: Any, candidates: Any) -> int:
        return 0


class Blind(First):
    """The first engine, without a look at the prompt."""

    uses_index = False
