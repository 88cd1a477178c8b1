"""The router from Python: choosing and reserving, waiting, what it learns of its workers."""

import asyncio
from typing import Any

import numpy as np
import pytest

from kvatlas import BlockIndex, content_hashes
from kvatlas.errors import InvalidArgumentError, InvalidTypeError
from kvatlas.routing import Decision, Router

from .routers import BLOCKS, Fewest, index_of


def test_the_holder_is_chosen_and_the_prediction_is_told() -> None:
    router = Router(workers=["a", "b"])
    found = index_of("b", 200).find(content_hashes=BLOCKS)
    decision = router.choose(content_hashes=BLOCKS, prompt_tokens=4_010, match=found, explain=True, now=0.0)
    assert (decision.worker, decision.rank, decision.why) == ("b", 0, "policy")
    assert (decision.cached_tokens, decision.uncached_tokens) == (3_200, 810)
    terms = decision.terms()
    assert terms is not None
    costs = {worker: row["cost (s)"] for worker, row in terms.items()}
    assert costs["b", 0] < costs["a", 0]
    assert terms["b", 0]["cached_tokens"] == 3_200
    assert decision.finish(cached_tokens=3_100, output_tokens=4, now=1.0)
    assert not decision.finish(now=1.0)
    counts = router.counts()
    assert (counts["expected_cached"], counts["reported_cached"]) == (3_200, 3_100)
    assert router.in_flight == 0


@pytest.mark.parametrize("match", [{"b": 200}, {("b", 0): 200}])
def test_depths_may_be_a_mapping(match: Any) -> None:
    decision = Router(workers=["a", "b"]).choose(content_hashes=BLOCKS, match=match)
    assert (decision.worker, decision.cached_tokens) == ("b", 3_200)


def test_a_request_that_waits_goes_where_it_may_by_then() -> None:
    router = Router(workers=["a", "b"])
    full = [router.choose(prompt_tokens=800_000, allowed=[worker], now=0.0) for worker in ("a", "b")]
    waiting = router.choose(prompt_tokens=800, allowed=["a"], waited=10.0, now=0.0)
    assert waiting.waits
    assert waiting.allow(["b"])
    full[0].failed(now=1.0)
    router.bind(now=1.0)
    assert waiting.waits, "it may not go there any more"
    assert waiting.allow(None)
    router.bind(now=1.0)
    assert waiting.worker == "a"
    assert not waiting.allow(["b"])
    with pytest.raises(InvalidTypeError):
        waiting.allow("b")
    with pytest.raises(InvalidArgumentError):
        router.choose(prompt_tokens=800, waited=-1.0)


def test_tokens_are_hashed_as_the_index_hashes_them() -> None:
    tokens = list(range(100))
    hashes = content_hashes(tokens, block_size=16, lora="x")
    index = BlockIndex(block_size=16)
    index.store("b", block_hashes=hashes.tolist(), content_hashes=hashes)
    policy = Fewest()
    router = Router(policy, ["a", "b"])
    router.choose(tokens=tokens, lora="x", match=index.find(tokens=tokens, lora="x"))
    request, candidates = policy.shown[0]
    assert request.tokens == 100
    assert request.content_hashes.tolist() == hashes.tolist()
    assert candidates.depth.tolist() == [0, 6]
    assert request.uncached(6) == 4


def test_what_was_just_sent_counts_at_once_and_only_for_a_time() -> None:
    router = Router(workers=["a", "b"], settings={"announced_within": 2.0})
    first = router.choose(content_hashes=BLOCKS, match={}, now=0.0)
    sibling = router.choose(content_hashes=BLOCKS, match={}, now=0.0)
    # One token is always computed: of 250 full blocks 249 can be taken from a cache.
    assert (sibling.worker, sibling.predicted_tokens) == (first.worker, 249 * 16)
    first.first_token(now=0.5)
    sibling.failed(now=0.5)
    first.finish(now=1.0)
    assert router.choose(content_hashes=BLOCKS, match={}, now=2.4).predicted_tokens > 0
    fresh = Router(workers=["a", "b"], settings={"announced_within": 2.0})
    only = fresh.choose(content_hashes=BLOCKS, match={}, now=0.0)
    only.first_token(now=0.5)
    only.finish(now=1.0)
    assert fresh.choose(content_hashes=BLOCKS, match={}, now=2.6).predicted_tokens == 0


def test_cold_requests_are_spread_by_work() -> None:
    router = Router(workers=list("abcd"))
    prompts = [np.arange(n * 1_000, n * 1_000 + 100, dtype=np.uint64) for n in range(40)]
    chosen = []
    for n, prompt in enumerate(prompts):
        decision = router.choose(content_hashes=prompt, match={}, now=float(n))
        decision.first_token(now=n + 0.2)
        decision.finish(now=n + 0.5)
        chosen.append(decision.worker)
    assert {chosen.count(worker) for worker in "abcd"} <= set(range(6, 15)), chosen


def test_it_fails_open() -> None:
    router = Router(workers=["a", "b"], settings={"queue_limit": 0})
    assert router.choose(content_hashes=BLOCKS).why == "no_index"
    assert router.choose(prompt_tokens=50, match={}).why == "no_tokens"
    for worker in "ab":
        router.set_trusted(worker, False)
    untrusted = router.choose(content_hashes=BLOCKS + np.uint64(999), match={"a": 10})
    assert (untrusted.why, untrusted.cached_tokens) == ("no_trust", 0)
    assert router.choose(prompt_tokens=50, allowed=["b"]).why == "only"
    nobody = Router().choose(prompt_tokens=50)
    assert (nobody.worker, nobody.refused) == (None, "no_worker")


def test_requests_wait_when_everybody_is_busy_and_are_bound_when_one_is_not() -> None:
    router = Router(workers=["a", "b"], settings={"queue_limit": 2, "queue_timeout": 10.0})
    prompts = [np.arange(n * 9_000, n * 9_000 + 1_250, dtype=np.uint64) for n in range(5)]
    decisions = [router.choose(content_hashes=prompt, match={}, now=0.0) for prompt in prompts]
    assert [bool(decision.worker) for decision in decisions] == [True, True, False, False, False]
    assert [decision.waits for decision in decisions] == [False, False, True, True, False]
    assert decisions[4].refused == "queue_full"
    assert router.waiting == 2
    assert router.bind(now=0.01) == []
    decisions[0].failed(now=0.5)  # a first token would prove how fast both are, and make room at both
    bound = router.bind(now=0.5)
    assert len(bound) == 1
    assert bound[0] in decisions[2:4]
    assert bound[0].worker == decisions[0].worker
    last = router.bind(now=11.0)
    assert [bool(decision.worker) for decision in last] == [True], "the last word is to send it"
    assert router.waiting == 0


def test_a_prompt_that_waits_is_looked_up_again() -> None:
    router = Router(workers=["a", "b"])
    for n in range(2):
        router.choose(content_hashes=np.arange(n * 9_000, n * 9_000 + 1_250, dtype=np.uint64), match={}, now=0.0)
    waits = router.choose(content_hashes=BLOCKS, match={}, now=0.0)
    asked = []

    def find(hashes: Any) -> dict[str, int]:
        asked.append(hashes.tolist())
        return {"a": 250, "b": 250}

    # Long enough for both to be nearly done, as far as can be told.
    assert router.bind(find, now=2.4) == [waits]
    assert asked == [BLOCKS.tolist()]
    assert waits.cached_tokens == 249 * 16


def test_awaiting_ends_with_a_worker() -> None:
    async def run() -> tuple[str | None, int]:
        router = Router(workers=["a"])
        first = await router.choose_async(prompt_tokens=100_000)
        second = asyncio.create_task(router.choose_async(prompt_tokens=100_000))
        given_up = asyncio.create_task(router.choose_async(prompt_tokens=100_000))
        while router.waiting < 2:
            await asyncio.sleep(0)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        waiting = router.waiting
        first.finish()
        return (await second).worker, waiting

    assert asyncio.run(run()) == ("a", 1)


def test_sessions_stick_for_a_time() -> None:
    router = Router("round-robin", list("abc"), settings={"session_ttl": 10.0})
    first = router.choose(prompt_tokens=10, session="s", now=0.0)
    again = [router.choose(prompt_tokens=10, session="s", now=float(n)) for n in (1, 5, 14)]
    assert {decision.worker for decision in again} == {first.worker}
    assert [decision.why for decision in again] == ["session"] * 3
    assert router.choose(prompt_tokens=10, session="s", now=30.0).why == "policy"
    other = router.choose(prompt_tokens=10, session="t", now=30.0)
    assert other.worker is not None
    router.remove_worker(other.worker, now=30.0)
    assert router.choose(prompt_tokens=10, session="t", now=30.0).worker != other.worker


def test_workers_come_and_go() -> None:
    router = Router("least-loaded", [("a", 0), ("a", 1)])
    assert router.workers == [("a", 0), ("a", 1)]
    ranks = {router.choose(prompt_tokens=100).rank for _ in range(2)}
    assert ranks == {0, 1}
    router.drain_worker("a", 1)
    assert {router.choose(prompt_tokens=100).rank for _ in range(4)} == {0}
    assert router.remove_worker("a") == 6
    router.add_worker("b")
    assert router.choose(prompt_tokens=100).worker == "b"
    with pytest.raises(InvalidArgumentError, match='no worker "a" with rank 0'):
        router.report("a", waiting=1)


def test_a_new_worker_is_warmed_up() -> None:
    router = Router("least-loaded", list("abc"), settings={"warm_seconds": 10.0, "warm_share": 0.25})
    for n in range(30):
        router.choose(prompt_tokens=1_000, now=n / 100)
    router.add_worker("d", now=1.0)
    early = [router.choose(prompt_tokens=1_000, now=1.0).worker for _ in range(40)]
    # A quarter of its fair share, though it is the least loaded by far.
    assert 1 <= early.count("d") <= 4
    late = [router.choose(prompt_tokens=1_000, now=20.0).worker for _ in range(4)]
    assert late == ["d"] * 4


def test_a_slow_worker_is_found_out() -> None:
    router = Router(workers=["quick", "slow"])
    now = 0.0
    for n in range(40):
        for worker, rate in (("quick", 10_000.0), ("slow", 2_500.0)):
            prompt = np.arange(n * 1_000, n * 1_000 + 100, dtype=np.uint64)
            decision = router.choose(content_hashes=prompt, allowed=[worker], now=now)
            # Once in a while something else is in the way.
            took = decision.uncached_tokens / rate * (50 if n % 13 == 12 else 1)
            decision.first_token(now=now + took)
            decision.finish(now=now + took)
            now += took
    rates = router.candidates(now=now).prefill_rate
    assert rates[0] == pytest.approx(10_000, rel=0.25)
    assert rates[1] == pytest.approx(2_500, rel=0.25)


def test_without_events_it_remembers_what_was_sent() -> None:
    settings = {"no_events": "mock", "announced_within": 0.0}
    router = Router(workers=["a", "b"], settings=settings)
    router.report("a", capacity_blocks=300)
    router.report("b", capacity_blocks=300)
    first = router.choose(content_hashes=BLOCKS, now=0.0)
    first.first_token(now=1.0)
    first.finish(now=2.0)
    again = router.choose(content_hashes=BLOCKS, now=100.0)
    assert (again.worker, again.cached_tokens, again.why) == (first.worker, 249 * 16, "policy")
    again.finish(now=101.0)
    # Another prompt of 250 blocks pushes out all but 50 of them.
    other = router.choose(content_hashes=BLOCKS + np.uint64(5_000), allowed=[str(first.worker)], now=102.0)
    other.finish(now=103.0)
    third = router.choose(content_hashes=BLOCKS, allowed=[str(first.worker)], now=110.0)
    assert third.cached_tokens == 50 * 16


def test_explain_says_how_long_it_would_wait_for_room() -> None:
    router = Router(workers=["a", "b"], block_size=16)
    for worker in ("a", "b"):
        router.report(worker, capacity_blocks=100, now=0.0)
    for number in range(2):
        blocks = np.arange(1_000 * number, 1_000 * number + 45, dtype=np.uint64) + 1
        decision = router.choose(content_hashes=blocks, prompt_tokens=720, allowed=["a"], now=number * 1.0)
        decision.first_token(now=number + 0.5)
    prompt = np.arange(5_000, 5_020, dtype=np.uint64)
    decision = router.choose(content_hashes=prompt, prompt_tokens=320, explain=True, now=3.0)
    terms = decision.terms()
    assert terms is not None
    # 90 of 100 blocks are in use at a, and 20 more do not fit: one that runs has to end.
    assert terms["a", 0]["wait for room (s)"] > 1.0
    assert terms["b", 0]["wait for room (s)"] == 0.0
    assert decision.worker == "b"


def test_a_decision_reads_well() -> None:
    router = Router(workers=["a"])
    assert repr(router) == 'Router(policy="kvatlas", workers=1)'
    decision: Decision = router.choose(prompt_tokens=50)
    assert repr(decision) == 'Decision(worker="a", rank=0, cached_tokens=0)'
    assert repr(Router().choose(prompt_tokens=5)) == 'Decision(refused="no_worker")'


def test_what_a_router_has_sent_counts_for_those_it_tells() -> None:
    one, two = Router(workers=["a", "b"]), Router(workers=["b", "c", "a"])
    sent = one.choose(content_hashes=BLOCKS, now=0.0)
    before = two.choose(content_hashes=BLOCKS, allowed=["c"], now=0.1)
    before.failed(now=0.1)
    one.tell(two, now=0.1)
    candidates = two.candidates(now=0.1)
    rows = dict(zip(candidates.workers, candidates.requests.tolist(), strict=True))
    assert rows == {("a", 0): int(sent.worker == "a"), ("b", 0): int(sent.worker == "b"), ("c", 0): 0}
    # What is on its way there is not computed anywhere else.
    follows = two.choose(content_hashes=BLOCKS, now=0.2)
    assert (follows.worker, follows.cached_tokens) == (sent.worker, 249 * 16)
    follows.finish(now=0.3)
    sent.finish(now=0.3)
    one.tell(two, now=0.3)
    assert two.candidates(now=0.3).requests.tolist() == [0, 0, 0]
    with pytest.raises(InvalidArgumentError, match="cannot tell itself") as refused:
        one.tell(one)
    assert refused.value.code == "conflicting_arguments"
    with pytest.raises(InvalidArgumentError, match="seconds must be"):
        one.tell(two, seconds=0.0)
    # One that falls silent is forgotten.
    one.choose(content_hashes=BLOCKS, now=0.4)
    one.tell(two, seconds=2.0, now=0.4)
    assert two.candidates(now=0.5).requests.sum() == 1
    two.expire(now=2.5)
    assert two.candidates(now=2.5).requests.sum() == 0
