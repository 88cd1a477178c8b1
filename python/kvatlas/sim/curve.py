"""Hit-rate curve: the share of prompt tokens that one cache would hold, for every cache size at once.

A cache that evicts the least recently used block holds a block if its reuse distance, the number of different blocks
used since its last use, is less than the cache's size. The distances of all uses give the curve (Mattson et al., 1970).
For long traces only a sample of the blocks is evaluated (SHARDS: Waldspurger et al., FAST 2015): a hash of a block's
name decides if the block is in the sample, distances are divided by the sampled share, and the difference between the
expected and the counted uses is added to the smallest distance.

Blocks are used in the order in which engines use them: all blocks of a prompt and its answer at once, and the last
blocks are evicted first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvatlas.sim.request import cacheable_tokens
from kvatlas.sim.trace import Trace, check_block_size

MOST_USES = 2_000_000
"""Number of uses of blocks above which the curve is computed from a sample of the blocks."""

_CHUNK = 10  # bits of a position within its chunk

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class HitCurve:
    """Hit rate of one cache as a function of the cache's size.

    Attributes:
        sizes: Cache sizes, in tokens, at which the hits increase; in ascending order.
        hits: Number of prompt tokens found in a cache of each size.
        prompt_tokens: Number of prompt tokens of all requests.
        share: Share of the blocks that are in the sample.
    """

    sizes: Floats
    hits: Floats
    prompt_tokens: int
    share: float

    def rate(self, tokens: float) -> float:
        """Hit rate, from 0 to 1, of a cache with a size of `tokens` tokens."""
        place = int(np.searchsorted(self.sizes, tokens, side="right"))
        return min(float(self.hits[place - 1]) / self.prompt_tokens, 1.0) if place else 0.0

    @property
    def most(self) -> float:
        """Hit rate, from 0 to 1, of a cache of unlimited size."""
        return self.rate(np.inf)

    def tokens_for(self, rate: float) -> float:
        """Size, in tokens, of the smallest cache with at least the hit rate `rate`; infinite if no size is enough."""
        place = int(np.searchsorted(self.hits, rate * self.prompt_tokens, side="left"))
        return float(self.sizes[place]) if place < self.sizes.size else np.inf


def hit_curve(trace: Trace, block_size: int, *, most_uses: int = MOST_USES) -> HitCurve:
    """Compute the hit-rate curve of a trace for engines with blocks of `block_size` tokens.

    If the trace uses blocks more than `most_uses` times, a sample of the blocks gives the curve. Raises `ConfigError`
    if `block_size` does not divide the trace's block size.
    """
    check_block_size(block_size, trace.block)
    share = min(1.0, most_uses / max(sum(len(line.hash_ids) for line in trace.requests), 1))
    chains, recency = _Chains(), _Recency()
    sizes: list[Floats] = []
    hits: list[Floats] = []
    expected = counted = 0.0
    for line in trace.requests:
        nodes = chains.nodes(line.hash_ids)
        full = line.input_length // block_size * block_size
        starts = trace.block * np.arange(nodes.size, dtype=np.int64)
        held = np.clip(full - starts, 0, trace.block).astype(np.float64)
        usable = np.clip((line.input_length - 1) // block_size * block_size - starts, 0, trace.block)
        # Tokens without an id, such as answers, are unique: they only take room.
        unnamed = cacheable_tokens(line.input_length, line.output_length) - float(held.sum())
        expected += float(usable.sum())
        if share < 1.0:
            kept = _sampled(nodes, share)
            nodes, held, usable = nodes[kept], held[kept], usable[kept]
        counted += float(usable.sum())
        size, hit = recency.use(nodes, held, usable, unnamed * share)
        sizes.append(size)
        hits.append(hit)
    all_sizes, all_hits = np.concatenate(sizes), np.concatenate(hits)
    order = np.argsort(all_sizes, kind="stable")
    found = np.cumsum(all_hits[order])
    if share < 1.0 and found.size:
        found = np.maximum(found + expected * share - counted, 0.0)
    prompts = sum(line.input_length for line in trace.requests)
    return HitCurve(all_sizes[order] / share, found / share, prompts, share)


class _Chains:
    """Numbers of blocks in the order of first use.

    A block is identified by its id and all ids before it in the prompt.
    """

    def __init__(self) -> None:
        self._children: dict[tuple[int, int], int] = {}

    def nodes(self, ids: Sequence[int]) -> Ints:
        """Numbers of the blocks of a prompt with the ids `ids`, in order."""
        children, node = self._children, -1
        found = []
        for name in ids:
            key = (node, name)
            child = children.get(key)
            if child is None:
                child = children[key] = len(children)
            found.append(child)
            node = child
        return np.array(found, dtype=np.int64)


class _Recency:
    """Blocks in the order of their last use, to find the number of tokens used after a given block."""

    def __init__(self) -> None:
        self._tokens = np.zeros(1 << 16)  # by position: later uses have higher ones
        self._chunks = np.zeros(self._tokens.size >> _CHUNK)
        self._last = np.full(1 << 12, -1, dtype=np.int64)  # position of each block
        self._end = 0

    def use(self, nodes: Ints, held: Floats, usable: Ints, unnamed: float) -> tuple[Floats, Floats]:
        """Record the use of a prompt's blocks, and of `unnamed` tokens without an id.

        Returns the smallest cache sizes with a hit, in tokens, and the tokens hit at each size. `held`: tokens of each
        block. `usable`: tokens of each block that count as a hit.
        """
        self._grow(int(nodes.max()) + 1 if nodes.size else 0, nodes.size + 1)
        last = self._last[nodes]
        seen = last >= 0
        old = last[seen]
        hit = np.minimum(self._tokens[old], usable[seen])
        sizes = self._since(old) + self._tokens[old]
        self._chunks -= np.bincount(old >> _CHUNK, self._tokens[old], self._chunks.size)
        self._tokens[old] = 0.0
        # The answer is evicted first, then the prompt from its end.
        places = self._end + nodes.size - np.arange(nodes.size, dtype=np.int64)
        self._tokens[self._end], self._tokens[places] = unnamed, held
        self._last[nodes] = places
        new = np.arange(self._end, self._end + nodes.size + 1)
        self._chunks += np.bincount(new >> _CHUNK, self._tokens[new], self._chunks.size)
        self._end += nodes.size + 1
        return sizes[hit > 0], hit[hit > 0]

    def _since(self, places: Ints) -> Floats:
        """Tokens in blocks that were last used after each of the positions `places`."""
        chunks = places >> _CHUNK
        behind = np.append(np.cumsum(self._chunks[::-1])[::-1], 0.0)
        since = np.empty(places.size)
        for chunk in np.unique(chunks):
            first = int(chunk) << _CHUNK
            inside = np.append(np.cumsum(self._tokens[first : first + (1 << _CHUNK)][::-1])[::-1], 0.0)
            its = chunks == chunk
            since[its] = inside[places[its] - first + 1] + behind[chunk + 1]
        return since

    def _grow(self, nodes: int, more: int) -> None:
        while nodes > self._last.size:
            self._last = np.append(self._last, np.full(self._last.size, -1, dtype=np.int64))
        while self._end + more > self._tokens.size:
            self._tokens = np.append(self._tokens, np.zeros(self._tokens.size))
            self._chunks = np.append(self._chunks, np.zeros(self._chunks.size))


def _sampled(nodes: Ints, share: float) -> NDArray[np.bool_]:
    """Mask of the blocks in a sample, chosen by a hash of their numbers: all uses of a block count, or none."""
    mixed = nodes.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(32)
    mixed *= np.uint64(0xD6E8FEB86659FD93)
    return (mixed >> np.uint64(40)) < np.uint64(int(share * (1 << 24)))
