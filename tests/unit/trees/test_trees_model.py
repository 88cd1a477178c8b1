"""Both trees against the model: random steps by every policy, exact after each."""

import random

import pytest

from .pairs import Keys, Pair, Texts, Tokens, pair, seeded, step


@pytest.mark.parametrize("seed", range(60))
def test_the_trees_are_the_model(seed: int) -> None:
    choose = seeded(seed)
    both, keys = pair(choose)
    for _ in range(150):
        step(both, keys, choose)
        both.check([keys.draw()])
        both.check_entries()
    both.end()


def pairs() -> list[tuple[Pair, Keys]]:
    choose = random.Random(99)
    return [(Texts("lru"), Keys(choose, None)), (Tokens("lru", 16, choose), Keys(choose, 16))]


@pytest.mark.parametrize("both", pairs(), ids=["text", "tokens"])
def test_the_random_steps_go_everywhere(both: tuple[Pair, Keys]) -> None:
    """The streams are worth something: trees have inner nodes, shared and own ones, and lose and regain them."""
    under_test, keys = both
    choose = random.Random(5)
    seen = dict.fromkeys(["splits", "shared", "deep", "missed", "matched"], 0)
    for _ in range(300):
        before = set(under_test.model.nodes)
        step(under_test, keys, choose)
        after = under_test.model.nodes
        seen["splits"] += any(any(old[: len(new)] == new for old in before) for new in set(after) - before)
        seen["shared"] += any(len(owners) > 1 for owners in after.values())
        seen["deep"] += any(sum(path[: len(p)] == p for p in after) >= 3 for path in after)
        depths = under_test.model.depths(under_test.path(keys.draw()))
        seen["matched" if depths else "missed"] += 1
    assert min(seen.values()) > 20, seen
