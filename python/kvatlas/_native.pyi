from collections.abc import Iterable, Sequence
from typing import Any, Final, SupportsIndex, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

from kvatlas.events import Event, Store

__all__ = ["BlockIndex", "Match", "__version__", "build_profile", "content_hashes", "prefix_hashes"]

__version__: Final[str]
build_profile: Final[str]

@final
class Match:
    @property
    def depth(self) -> int: ...
    @property
    def any_tier(self) -> Match: ...
    def within(self, tier: str) -> Match: ...
    def levels(self) -> list[tuple[int, list[str]]]: ...
    def scores(self) -> dict[str, int]: ...
    def by_rank(self) -> dict[tuple[str, int], int]: ...
    def best(self, k: SupportsIndex = 1, among: Iterable[str] | None = None) -> list[tuple[str, int]]: ...

@final
class BlockIndex:
    def __new__(cls, block_size: SupportsIndex = 16, count_copies: bool = True) -> BlockIndex: ...
    @property
    def block_size(self) -> int: ...
    @property
    def count_copies(self) -> bool: ...
    def store(
        self,
        worker: str,
        *,
        block_hashes: Sequence[SupportsIndex | bytes] | NDArray[np.integer[Any]] | Buffer,
        content_hashes: Sequence[SupportsIndex] | NDArray[np.uint64] | Buffer | None = None,
        tokens: Sequence[SupportsIndex] | NDArray[np.integer[Any]] | Buffer | None = None,
        parent: SupportsIndex | bytes | None = None,
        rank: SupportsIndex = 0,
        tier: str = "gpu",
        lora: str | None = None,
        salt: str | None = None,
    ) -> None: ...
    def remove(
        self,
        worker: str,
        *,
        block_hashes: Sequence[SupportsIndex | bytes] | NDArray[np.integer[Any]] | Buffer,
        rank: SupportsIndex = 0,
        tier: str = "gpu",
    ) -> None: ...
    def clear(self, worker: str, *, rank: SupportsIndex | None = None, tier: str | None = None) -> None: ...
    def drop(self, worker: str) -> None: ...
    def find(self, content_hashes: Sequence[SupportsIndex] | NDArray[np.uint64] | Buffer) -> Match: ...
    def find_tokens(
        self,
        tokens: Sequence[SupportsIndex] | NDArray[np.integer[Any]] | Buffer,
        *,
        lora: str | None = None,
        salt: str | None = None,
    ) -> Match: ...
    def stats(self) -> dict[str, int]: ...
    def workers(self) -> dict[str, int]: ...
    def dump(self) -> list[Store]: ...
    def apply(self, events: Iterable[Event]) -> None: ...

def content_hashes(
    tokens: Sequence[SupportsIndex] | NDArray[np.integer[Any]] | Buffer,
    block_size: SupportsIndex,
    lora: str | None = None,
    salt: str | None = None,
) -> NDArray[np.uint64]: ...
def prefix_hashes(
    content_hashes: Sequence[SupportsIndex] | NDArray[np.uint64] | Buffer,
) -> NDArray[np.uint64]: ...
