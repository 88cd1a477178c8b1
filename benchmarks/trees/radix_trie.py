"""RadixTrie beside a radix cache in plain Python that behaves as SGLang's: prompts of 4,000 tokens, from Python.

Each figure is the least of several rounds, taken in turn; microseconds a call. Tokens of a query are other objects than
those that were inserted, as they are when each request is tokenized anew.

Reading the tokens is measured by itself ("read"): a match in an empty trie, after the same prompts were inserted into
another one, so that lists lie in memory alike. From a list, that is one int object after the other, and nothing of the
trie's. So there are two ratios: of the whole call, and of the call without reading ("unread"). Plain Python reads no
more of a list than it compares; its time counts as a whole in both. Arrays are of int64.

Cases, each over prompts that share a system prompt of 1,000 tokens, in an already filled cache:
- match: all of a cached prompt;
- match half: the second half of the prompt is new;
- insert again: a prompt that is there;
- insert turn: what a finished turn of a conversation does, 3,600 tokens are there and 400 are new;
- insert new: only the system prompt is there.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from benchmarks.trees.plain_trie import PlainTrie
from rich.console import Console
from rich.table import Table

from kvatlas.trees import RadixTrie

LENGTH, SYSTEM, PROMPTS, ROUNDS = 4000, 1000, 24, 15
PAGES = (1, 16, 128)
BAR = 10  # times as fast as plain Python


def prompts(seed: int, page: int) -> list[Any]:
    """Token ids below 128,000 in whole pages, the system prompt first."""
    choose = np.random.default_rng(seed)
    system = np.random.default_rng(0).integers(300, 128_000, SYSTEM)
    length = LENGTH // page * page
    return [np.concatenate([system, choose.integers(300, 128_000, LENGTH - SYSTEM)])[:length] for _ in range(PROMPTS)]


def least(*measured: Callable[[], float]) -> tuple[float, ...]:
    """The least time a call of each, one round of each in turn."""
    times = [tuple(one() for one in measured) for _ in range(ROUNDS)]
    return tuple(map(min, zip(*times, strict=True)))


def timed(calls: list[Callable[[], object]]) -> float:
    start = time.perf_counter()
    for call in calls:
        call()
    return (time.perf_counter() - start) / len(calls) * 1e6


def measure(page: int, case: str, listed: bool) -> tuple[float, ...]:
    """Microseconds of RadixTrie, of reading the tokens alone, and of plain Python."""
    cached, other = prompts(1, page), prompts(2, page)

    def give(tokens: Any) -> Any:
        return tokens.tolist() if listed else tokens.copy()

    def blocks(tokens: Any) -> list[int]:
        return list(range(1000, 1000 + len(tokens) // page))

    keep = {"match half": LENGTH // 2, "insert turn": LENGTH - 400}.get(case, LENGTH) // page * page
    queries = {
        "insert new": other,
        "match half": [np.concatenate([one[:keep], two[keep:]]) for one, two in zip(cached, other, strict=True)],
    }.get(case, cached)

    def run(make: Callable[[int], Any], *, only_read: bool = False) -> Callable[[], float]:
        def once() -> float:
            trie = make(page)
            for tokens in cached:
                kept = tokens[:keep] if case == "insert turn" else tokens
                trie.insert(give(kept), blocks(kept))
            given = [(give(tokens), blocks(tokens)) for tokens in queries]
            if only_read:
                empty = make(page)
                return timed([partial(empty.match_prefix, tokens) for tokens, _ in given])
            if case.startswith("match"):
                return timed([partial(trie.match_prefix, tokens) for tokens, _ in given])
            return timed([partial(trie.insert, tokens, new) for tokens, new in given])

        return once

    return least(run(RadixTrie), run(RadixTrie, only_read=True), run(PlainTrie))


def main() -> None:
    """Measures and prints the table."""
    for tokens in prompts(1, 16)[:3]:
        trie, plain = RadixTrie(16), PlainTrie(16)
        blocks = list(range(len(tokens) // 16))
        trie.insert(tokens, blocks)
        plain.insert(tokens, blocks)
        assert trie.match_prefix(tokens[:3000])[1] == plain.match_prefix(tokens[:3000])[1] == blocks[:187]
    table = Table("case", "page", "tokens", "us", "read", "plain", "times", "unread", f"bar {BAR}")
    for column in table.columns[3:8]:
        column.justify = "right"
    for case in ("match", "match half", "insert again", "insert turn", "insert new"):
        for page in PAGES:
            for listed in (False, True):
                ours, reading, theirs = measure(page, case, listed)
                # What is left below a tenth of the call is noise.
                rest = theirs / max(ours - reading, ours / 10)
                kind = "list" if listed else "array"
                table.add_row(
                    case,
                    str(page),
                    kind,
                    f"{ours:.1f}",
                    f"{reading:.1f}",
                    f"{theirs:.1f}",
                    f"{theirs / ours:.1f}",
                    f"{rest:.1f}",
                    "" if rest >= BAR else "below",
                )
    Console().print(table)


if __name__ == "__main__":
    main()
