"""The cost of calls from Python: hashing, find, store and remove. Best of several rounds, in nanoseconds a call."""

import timeit
from collections.abc import Callable

import numpy as np
from rich.console import Console
from rich.table import Table

from kvatlas import BlockIndex, content_hashes, prefix_hashes

ROUNDS = 9


def nanoseconds(call: Callable[[], object]) -> float:
    """The quickest of several rounds of at least 20 ms, for one call."""
    timer = timeit.Timer(call)
    number = max(1, int(timer.autorange()[0] / 10))
    return min(timer.repeat(ROUNDS, number)) / number * 1e9


def main() -> None:
    """Measures and prints the table."""
    choose = np.random.default_rng(0)
    tokens = choose.integers(0, 32_000, 32_768, dtype=np.uint32)
    wide, listed, raw = tokens.astype(np.int64), tokens.tolist(), tokens.tobytes()
    contents = content_hashes(tokens, 16)
    query, unknown = contents[:24].copy(), contents[24:48].copy()
    query_list = query.tolist()
    index = BlockIndex()
    for worker in range(32):
        index.store(f"w{worker}", block_hashes=contents, content_hashes=contents)
    one = contents[:1].copy()
    match = index.find(content_hashes=query)

    def store_and_remove() -> None:
        index.store("other", block_hashes=one, content_hashes=one)
        index.remove("other", block_hashes=one)

    table = Table("call", "ns")
    table.columns[1].justify = "right"
    calls: dict[str, Callable[[], object]] = {
        "content_hashes, 32,768 tokens in blocks of 16, uint32": lambda: content_hashes(tokens, 16),
        "the same, int64": lambda: content_hashes(wide, 16),
        "the same, bytes": lambda: content_hashes(raw, 16),
        "the same, list": lambda: content_hashes(listed, 16),
        "the same in blocks of 512, uint32": lambda: content_hashes(tokens, 512),
        "prefix_hashes, 2,048 blocks": lambda: prefix_hashes(contents),
        "find, 24 blocks that 32 workers hold, uint64": lambda: index.find(content_hashes=query),
        "the same from a list": lambda: index.find(content_hashes=query_list),
        "find, 24 unknown blocks": lambda: index.find(content_hashes=unknown),
        "find, 2,048 blocks": lambda: index.find(content_hashes=contents),
        "find by 32,768 tokens": lambda: index.find(tokens=tokens),
        "match.depth": lambda: match.depth,
        "match.best()": match.best,
        "match.scores(), 32 workers": match.scores,
        "store and remove one block": store_and_remove,
        "nothing (the cost of measuring)": lambda: None,
    }
    for name, call in calls.items():
        table.add_row(name, f"{nanoseconds(call):,.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
