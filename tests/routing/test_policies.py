"""The routing policies, one by one."""

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from kvatlas._hashes import mix
from kvatlas.errors import PolicyError
from kvatlas.routing import POLICIES, Load, PrefixAffinity, Prompt, find_policy

WORKERS = ["a", "b", "c", "d"]


class Found:
    def __init__(self, **depths: int) -> None:
        self._depths = depths

    def scores(self) -> dict[str, int]:
        return self._depths


def prompt(tokens: int = 1000, family: int = 0) -> Prompt:
    blocks = mix(np.arange(tokens // 16, dtype=np.uint64) + np.uint64(family * 10_000))
    return Prompt(tokens, blocks, 16)


def choices(name: str, loads: Sequence[Load], match: Found, count: int = 200, seed: int = 0) -> list[int]:
    policy = find_policy(name)(WORKERS, seed)
    return [policy.choose(prompt(family=i), loads, match) for i in range(count)]


def idle() -> list[Load]:
    return [Load() for _ in WORKERS]


def test_a_prompt_never_is_wholly_cached() -> None:
    assert prompt(160).uncached(0) == 160
    assert prompt(160).uncached(9) == 16
    assert prompt(160).uncached(10) == 16
    assert prompt(161).uncached(10) == 1


def test_random_is_even_and_follows_its_seed() -> None:
    counts = Counter(choices("random", idle(), Found(), 4000))
    assert set(counts) == {0, 1, 2, 3}
    assert max(counts.values()) < 1.15 * min(counts.values())
    assert choices("random", idle(), Found()) == choices("random", idle(), Found())
    assert choices("random", idle(), Found()) != choices("random", idle(), Found(), seed=1)


def test_round_robin_goes_round() -> None:
    assert choices("round-robin", idle(), Found(), 6) == [0, 1, 2, 3, 0, 1]


def test_least_loaded_takes_the_shortest_queue_then_the_fewest_in_flight() -> None:
    loads = [Load(1, 500), Load(9, 100), Load(2, 100), Load(0, 501)]
    assert set(choices("least-loaded", loads, Found(a=60), 20)) == {2}
    assert set(choices("least-loaded", idle(), Found(), 200)) == {0, 1, 2, 3}


def test_prefix_affinity_sends_the_same_beginning_to_the_same_engine() -> None:
    policy = PrefixAffinity(WORKERS, 0)
    longer = Prompt(5000, np.concatenate([prompt(2048).content_hashes, prompt(2900, 7).content_hashes]), 16)
    assert policy.choose(prompt(2048), idle(), Found()) == policy.choose(longer, idle(), Found())
    assert set(choices("prefix-affinity", idle(), Found())) == {0, 1, 2, 3}


def test_prefix_affinity_is_consistent() -> None:
    prompts = [prompt(family=i) for i in range(300)]
    four, five = PrefixAffinity(WORKERS, 0), PrefixAffinity([*WORKERS, "e"], 0)
    before = [four.choose(each, idle(), Found()) for each in prompts]
    after = [five.choose(each, [*idle(), Load()], Found()) for each in prompts]
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {4}
    assert len(moved) < 100


def test_prefix_affinity_passes_over_an_engine_with_too_long_a_queue() -> None:
    policy = PrefixAffinity(WORKERS, 0)
    home = policy.choose(prompt(), idle(), Found())
    loads = idle()
    loads[home] = Load(1, 100_000)
    assert policy.choose(prompt(), loads, Found()) != home
    even = [Load(5, 100_000) for _ in WORKERS]
    assert policy.choose(prompt(), even, Found()) == home


def test_prefix_affinity_without_a_full_block_takes_the_least_loaded() -> None:
    loads = [Load(1, 10), Load(1, 10), Load(0, 0), Load(1, 10)]
    assert PrefixAffinity(WORKERS, 0).choose(prompt(15), loads, Found()) == 2


def test_exact_weighs_what_is_cached_against_the_queue() -> None:
    assert set(choices("exact", idle(), Found(c=40), 20)) == {2}
    # c holds 640 of 1000 tokens; a queue of 4 * 640 is what that is worth.
    loads = idle()
    loads[2] = Load(3, 2559)
    assert set(choices("exact", loads, Found(c=40), 20)) == {2}
    loads[2] = Load(3, 2561)
    assert 2 not in choices("exact", loads, Found(c=40), 20)


def test_exact_breaks_ties_by_requests_in_flight_then_by_chance() -> None:
    loads = [Load(2), Load(1), Load(1), Load(3)]
    assert set(choices("exact", loads, Found(), 200)) == {1, 2}
    assert choices("exact", loads, Found()) == choices("exact", loads, Found())


def test_policies_are_found_by_name() -> None:
    assert list(POLICIES) == ["random", "round-robin", "least-loaded", "prefix-affinity", "exact"]
    with pytest.raises(PolicyError, match="did you mean 'exact'"):
        find_policy("exat")
    with pytest.raises(PolicyError, match=r"one of random, .*, or module:Class"):
        find_policy("zzz")


def test_a_policy_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_policy.py").write_text(
        "class Last:\n"
        "    uses_index = False\n"
        "    def __init__(self, workers, seed): self.n = len(workers)\n"
        "    def choose(self, prompt, loads, match): return self.n - 1\n"
        "class NoFlag:\n"
        "    def choose(self, prompt, loads, match): return 0\n"
        "number = 7\n"
    )
    (tmp_path / "broken_policy.py").write_text("1 / 0\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert set(choices("own_policy:Last", idle(), Found(), 5)) == {3}
    for name, message in [
        ("own_policy:Missing", "cannot load .* no attribute 'Missing'"),
        ("no_such_module:X", "No module named"),
        ("broken_policy:X", "ZeroDivisionError"),
        ("own_policy:number", "needs a choose"),
        ("own_policy:NoFlag", "needs uses_index"),
        (":", "cannot load"),
    ]:
        with pytest.raises(PolicyError, match=message):
            find_policy(name)
