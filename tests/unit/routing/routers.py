"""An index, and a policy that notes what it was shown."""

import numpy as np

from kvatlas import BlockIndex
from kvatlas.routing import Candidates, RoutedRequest

BLOCKS = np.arange(1, 251, dtype=np.uint64)


def index_of(worker: str, blocks: int = BLOCKS.size) -> BlockIndex:
    index = BlockIndex(block_size=16)
    index.store(worker, block_hashes=BLOCKS[:blocks].tolist(), content_hashes=BLOCKS[:blocks])
    return index


class Fewest:
    """The fewest requests; notes what it was shown."""

    def __init__(self, seed: int = 0, *, offset: int = 0) -> None:
        self.offset = offset
        self.shown: list[tuple[RoutedRequest, Candidates]] = []

    def choose(self, request: RoutedRequest, candidates: Candidates) -> int | None:
        self.shown.append((request, candidates))
        return int(np.argmin(candidates.requests)) + self.offset
