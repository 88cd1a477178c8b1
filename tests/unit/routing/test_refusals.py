"""The words in which a router refuses what it is given."""

from typing import Any

import pytest

from kvatlas import BlockIndex, content_hashes
from kvatlas.client import Answer
from kvatlas.errors import ConfigError, InvalidArgumentError, InvalidTypeError, PolicyError
from kvatlas.reference import ReferenceIndex
from kvatlas.routing import Router
from kvatlas.types import Counts

from .routers import BLOCKS, Fewest, index_of


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: Router("kvatlsa"), PolicyError, "kvatlas"),
        (lambda: Router(options={"wiat": 1}), PolicyError, "has no option"),
        (lambda: Router(options={"settle": "x"}), PolicyError, "settle must be a number"),
        (lambda: Router(settings={"session_tll": 1}), ConfigError, "session_tll"),
        (lambda: Router(settings={"order": "lifo"}), ConfigError, "least-work, fcfs"),
        (lambda: Router(3), InvalidTypeError, "policy must be a name or an object"),  # type: ignore[arg-type]
        (lambda: Router(workers=["a"]).choose(), InvalidArgumentError, "needs tokens"),
        (
            lambda: Router(workers=["a"]).choose(tokens=[1], content_hashes=[1]),
            InvalidArgumentError,
            "not both",
        ),
        (lambda: Router(workers=["a"]).choose(content_hashes=[1], match=3), InvalidTypeError, "match must be"),  # type: ignore[arg-type]
    ],
)
def test_what_is_wrong_is_said(make: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        make()


UNTYPED: Any = Router  # to be called as no type checker allows


def one() -> Any:
    return Router(workers=["a", "b"])


def decided() -> Any:
    """A decision for a prompt of 50 tokens, three full blocks."""
    return one().choose(tokens=list(range(50)))


HUGE = 10**30


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: UNTYPED(workers="gpu-1"), r"workers must be an iterable of names, got the single str: \['gpu-1'\]\?"),
        (lambda: UNTYPED(workers=b"gpu"), "workers must be an iterable of names"),
        (lambda: UNTYPED(workers=3), "workers must be an iterable of names, got int"),
        (lambda: UNTYPED(workers=[3]), "workers must have names, or tuples of a name and a rank, got int"),
        (lambda: UNTYPED(workers=[("a", 0, 1)]), "workers must have names, or tuples"),
        (lambda: UNTYPED(workers=[("a", "0")]), "rank must be an int, got str"),
        (lambda: UNTYPED(workers=[("a", True)]), "rank must be an int, got bool"),
        (lambda: UNTYPED(seed="x"), "seed must be an int"),
        (lambda: UNTYPED(options=[1]), "options must be a dict, got list"),
        (lambda: UNTYPED(options={"wait": {1}}), "options must have numbers, strings and bools only"),
        (lambda: UNTYPED(settings="x"), "settings must be a dict, got str"),
        (lambda: UNTYPED(clock=3), "clock must be callable, got int"),
        (lambda: UNTYPED(Fewest), "policy must be a name or an object, got the class"),
        (lambda: UNTYPED(clock=lambda: "noon").choose(prompt_tokens=1), "what clock returns must be a number, got str"),
        (lambda: one().choose(prompt_tokens=5.0), "prompt_tokens must be an int, got float"),
        (lambda: one().choose(prompt_tokens=True), "prompt_tokens must be an int, got bool"),
        (lambda: one().choose(prompt_tokens=5, max_tokens="7"), "max_tokens must be an int"),
        (lambda: one().choose(prompt_tokens=5, priority=1.5), "priority must be an int"),
        (lambda: one().choose(prompt_tokens=5, answers=None), "answers must be an int"),
        (lambda: one().choose(prompt_tokens=5, explain=1), "explain must be True or False"),
        (lambda: one().choose(prompt_tokens=5, now="0"), "now must be a number, got str"),
        (lambda: one().choose(prompt_tokens=5, session=1.5), "session must be a str or an int, got float"),
        (lambda: one().choose(prompt_tokens=5, allowed="b"), "allowed must be an iterable of names"),
        (lambda: one().choose(prompt_tokens=5, allowed=("a", 0)), "allowed must have names, or tuples"),
        (lambda: one().choose(tokens=[1] * 16, match={"a": 1.0}), "a depth in match must be an int, got float"),
        (lambda: one().choose(tokens=[1] * 16, match={3: 1}), "match must have names, or tuples"),
        (lambda: one().add_worker(3), "worker must be a str, got int"),
        (lambda: one().add_worker("c", rank="0"), "rank must be an int"),
        (lambda: one().add_worker("c", weight="heavy"), "weight must be a number"),
        (lambda: one().remove_worker(3), "worker must be a str"),
        (lambda: one().drain_worker(("a", 0)), "worker must be a str, got tuple"),
        (lambda: one().set_trusted("a", 1), "trusted must be True or False"),
        (lambda: one().report("a", waiting="many"), "waiting must be a number"),
        (lambda: decided().progress(1.5), "tokens must be an int"),
        (lambda: decided().finish(cached_tokens=1.5), "cached_tokens must be an int"),
        (lambda: decided().finish(output_tokens="7"), "output_tokens must be an int"),
    ],
)  # fmt: skip
def test_the_wrong_type_is_said(call: Any, said: str) -> None:
    with pytest.raises(InvalidTypeError, match=said):
        call()


@pytest.mark.parametrize("wrong", [-1, HUGE])
@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda wrong: UNTYPED(seed=wrong), "seed must be from 0 to 18446744073709551615"),
        (lambda wrong: UNTYPED(workers=[("a", wrong)]), "rank must be from 0 to 4294967295"),
        (lambda wrong: one().choose(prompt_tokens=wrong), "prompt_tokens must be from 0 to 4294967295"),
        (lambda wrong: one().choose(prompt_tokens=5, max_tokens=wrong), "max_tokens must be from 0 to"),
        (lambda wrong: one().choose(prompt_tokens=5, answers=wrong), "answers must be from 1 to"),
        (lambda wrong: one().choose(prompt_tokens=5, session=wrong), "session as a number must be from 0 to"),
        (lambda wrong: one().choose(prompt_tokens=5, allowed=[("a", wrong)]), "rank must be from 0 to"),
        (lambda wrong: one().choose(tokens=[1] * 16, match={"a": wrong}), "a depth in match must be from 0 to"),
        (lambda wrong: one().choose(tokens=[1] * 16, match={("a", wrong): 1}), "rank must be from 0 to"),
        (lambda wrong: one().add_worker("c", rank=wrong), "rank must be from 0 to"),
        (lambda wrong: one().remove_worker("a", rank=wrong), "rank must be from 0 to"),
        (lambda wrong: one().drain_worker("a", rank=wrong), "rank must be from 0 to"),
        (lambda wrong: one().set_trusted("a", True, rank=wrong), "rank must be from 0 to"),
        (lambda wrong: one().report("a", waiting=1, rank=wrong), "rank must be from 0 to"),
        (lambda wrong: decided().progress(wrong), "tokens must be from 0 to"),
        (lambda wrong: decided().finish(cached_tokens=wrong), "cached_tokens must be from 0 to"),
        (lambda wrong: decided().finish(output_tokens=wrong), "output_tokens must be from 0 to"),
    ],
)
def test_a_number_out_of_range_is_said(call: Any, said: str, wrong: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{said}.*, got {wrong}") as raised:
        call(wrong)
    assert raised.value.code == "out_of_range"


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -0.5, 10**400])
@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda wrong: one().add_worker("c", weight=wrong), "weight must be a finite number above 0"),
        (lambda wrong: one().report("a", waiting=wrong), "waiting must be a finite number of at least 0"),
        (lambda wrong: one().report("a", running=wrong), "running must be a finite number of at least 0"),
        (lambda wrong: one().report("a", kv_usage=wrong), "kv_usage must be a share from 0 to 1"),
        (lambda wrong: one().report("a", capacity_blocks=wrong), "capacity_blocks must be a finite number"),
        (lambda wrong: one().report("a", held_blocks=wrong), "held_blocks must be a finite number"),
    ],
)
def test_an_amount_out_of_range_is_said(call: Any, said: str, wrong: float) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        call(wrong)


def test_times_are_finite() -> None:
    for wrong in (float("nan"), float("inf"), float("-inf")):
        with pytest.raises(InvalidArgumentError, match="now must be a finite number of seconds"):
            one().choose(prompt_tokens=5, now=wrong)
    with pytest.raises(InvalidArgumentError, match="kv_usage must be a share from 0 to 1, got 85"):
        one().report("a", kv_usage=85)


def test_no_more_is_cached_than_the_prompt_has() -> None:
    decision = decided()
    with pytest.raises(
        InvalidArgumentError, match="cached_tokens must be from 0 to 50, the length of this prompt, got 51"
    ):
        decision.finish(cached_tokens=51)
    assert decision.finish(cached_tokens=50), "it went on"
    # Of full blocks, the rest is not known.
    hashed = one().choose(content_hashes=[1, 2, 3])
    with pytest.raises(InvalidArgumentError, match="from 0 to 63"):
        hashed.finish(cached_tokens=64)
    assert hashed.finish(cached_tokens=63)


def test_a_match_is_of_the_same_blocks_and_the_same_prompt() -> None:
    tokens = list(range(1_024))
    coarse = BlockIndex(block_size=128)
    hashes = content_hashes(tokens, block_size=128)
    coarse.store("b", block_hashes=hashes.tolist(), content_hashes=hashes)
    found = coarse.find(tokens=tokens)
    assert found.block_size == found.any_tier.block_size == 128
    same = Router(workers=["a", "b"], block_size=128).choose(tokens=tokens, match=found)
    assert (same.worker, same.cached_tokens) == ("b", 1_024 - 128)
    other = r"match counts blocks of 128 tokens, and this router blocks of 16: both must be the same"
    reference = ReferenceIndex(block_size=128).find(tokens=tokens)
    asked = Answer(workers=(), block_size=128, length=8)
    match: Any
    for match in (found, found.any_tier, reference, asked):
        with pytest.raises(InvalidArgumentError, match=other) as raised:
            one().choose(tokens=tokens, match=match)
        assert raised.value.code == "block_size_mismatch"
    with pytest.raises(InvalidArgumentError, match="match must count blocks, got one that counts characters"):
        one().choose(tokens=tokens, match=Counts({"a": 1}, 10, "characters"))
    long = index_of("b").find(content_hashes=BLOCKS)
    for match in (long, {"b": 250}, Counts({"b": 250}, 250)):
        with pytest.raises(InvalidArgumentError, match="match has 250 blocks of a prompt that has 64"):
            one().choose(tokens=tokens, match=match)
    router = one()
    busy = [router.choose(prompt_tokens=100_000, match={}) for _ in range(2)]
    assert router.choose(tokens=tokens, match={}).waits
    assert busy[0].failed()
    with pytest.raises(InvalidArgumentError, match=other):
        router.bind(lambda _hashes: found)
