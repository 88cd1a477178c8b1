"""Why an engine cannot be registered."""

from __future__ import annotations


class Problem(Exception):  # noqa: N818 - what is said of an engine; nobody outside sees it
    """An engine cannot be registered.

    Attributes:
        temporary: Whether waiting may help: the engine is starting or away. Else its answer was plain.
    """

    def __init__(self, message: str, *, temporary: bool = False) -> None:
        super().__init__(message)
        self.temporary = temporary
