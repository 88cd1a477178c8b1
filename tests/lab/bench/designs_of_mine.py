"""Designs in Python that do what they should not, for the run to find out."""

import time
from collections.abc import Sequence


class Right:
    """Workers' blocks in sets, walked from the root: slow and right."""

    def __init__(self) -> None:
        self.held: dict[int, dict[int, tuple[int | None, int]]] = {}

    def store(
        self, worker: int, parent: int | None, block_hashes: Sequence[int], content_hashes: Sequence[int]
    ) -> None:
        mine = self.held.setdefault(worker, {})
        for name, content in zip(block_hashes, content_hashes, strict=True):
            mine[int(name)] = (parent, int(content))
            parent = int(name)

    def remove(self, worker: int, block_hashes: Sequence[int]) -> None:
        for name in block_hashes:
            self.held[worker].pop(int(name), None)

    def clear(self, worker: int) -> None:
        self.held.pop(worker, None)

    def find(self, content_hashes: Sequence[int]) -> dict[int, int]:
        depths = {}
        for worker, mine in self.held.items():
            steps = {(parent, content): name for name, (parent, content) in mine.items()}
            name, depth = None, 0
            for content in content_hashes:
                if (name := steps.get((name, int(content)))) is None:
                    break
                depth += 1
            if depth:
                depths[worker] = depth
        return depths


class Slow(Right):
    """Takes 20 ms for every event."""

    def store(
        self, worker: int, parent: int | None, block_hashes: Sequence[int], content_hashes: Sequence[int]
    ) -> None:
        time.sleep(0.02)
        super().store(worker, parent, block_hashes, content_hashes)

    def find(self, content_hashes: Sequence[int]) -> dict[int, int]:
        return {}


class WrongDesign(Right):
    """One block too many for one worker in two."""

    def find(self, content_hashes: Sequence[int]) -> dict[int, int]:
        return {worker: depth + worker % 2 for worker, depth in super().find(content_hashes).items()}


class FailingIndex(Right):
    def find(self, content_hashes: Sequence[int]) -> dict[int, int]:
        raise LookupError("out of paper")


class Loud(Right):
    def clear(self, worker: int) -> None:
        print("cleared")

    def find(self, content_hashes: Sequence[int]) -> dict[int, int]:
        print("hello")
        return super().find(content_hashes)


def unmade() -> Right:
    raise RuntimeError("not today")
