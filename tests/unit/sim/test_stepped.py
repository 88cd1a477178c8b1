"""The engine that works in steps: the rules of the cache, as `test_engine.py` has them, and those of its time."""

import random
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from kvatlas import BlockIndex, prefix_hashes
from kvatlas.errors import ConfigError
from kvatlas.events import Clear, Event, Remove, Store
from kvatlas.sim import EngineConfig, NullSink, Recorder, Request, State
from kvatlas.sim.gaps import Gaps
from kvatlas.sim.hardware import HARDWARE, StepTime, find_hardware
from kvatlas.sim.pool import BlockPool
from kvatlas.sim.stepped import SteppedEngine

SIZE = 4
SECOND = StepTime(base=1.0, prefill=0.0, running=0.0, context=0.0)


def request(number: int, contents: Sequence[int], prompt: int, output: int = 1) -> Request:
    """A request whose blocks of 4 tokens hold `contents`; blocks of the output too."""
    needed = (prompt + max(output, 1) - 1) // SIZE
    blocks = [*contents, *(1000 * (number + 1) + i for i in range(needed - len(contents)))][:needed]
    hashes = np.array(blocks, dtype=np.uint64)
    return Request(number, prompt, output, hashes, prefix_hashes(hashes).tolist())


def engine(steps: StepTime = SECOND, **config: Any) -> tuple[SteppedEngine, Recorder]:
    recorder = Recorder()
    defaults = {"block_size": SIZE, "blocks": 100, "chunk": None}
    return SteppedEngine("w", EngineConfig(**{**defaults, **config}), steps, recorder), recorder


def stores(events: Sequence[Event]) -> list[list[int]]:
    return [list(event.content_hashes) for event in events if isinstance(event, Store)]


def holdings(events: Sequence[Event]) -> Counter[int | bytes]:
    """Copies of each block by what was announced."""
    held: Counter[int | bytes] = Counter()
    for event in events:
        if isinstance(event, Store):
            held.update(event.block_hashes)
        elif isinstance(event, Remove):
            held.subtract(event.block_hashes)
    assert all(count >= 0 for count in held.values())
    return +held


def pool_holdings(mock: SteppedEngine) -> Counter[int | bytes]:
    pool = mock.pool
    return Counter({name: pool.copies(name) for name in pool._first})


def test_only_full_blocks_are_cached_and_announced() -> None:
    mock, recorder = engine()
    mock.submit(request(0, [1, 2], prompt=11), 0)
    mock.drain()
    assert stores(recorder.events) == [[1, 2]]


def test_a_prompt_of_exactly_k_blocks_hits_at_most_k_minus_1() -> None:
    mock, _ = engine()
    for number, prompt in enumerate((8, 8, 9)):
        mock.submit(request(number, [1, 2], prompt), 100.0 * number)
    again, longer = request(3, [1, 2], 8), request(4, [1, 2], 9)
    mock.submit(again, 1000)
    mock.submit(longer, 2000)
    mock.drain()
    assert (again.hit_tokens, longer.hit_tokens) == (4, 8)


def test_hits_are_not_announced() -> None:
    mock, recorder = engine()
    mock.submit(request(0, [1, 2], 9), 0)
    mock.drain()
    before = len(recorder.events)
    mock.submit(request(1, [1, 2], 9), 100)
    mock.drain()
    assert len(recorder.events) == before


def test_the_blocks_of_a_step_are_one_announcement_chained_to_the_block_before() -> None:
    mock, recorder = engine()
    mock.submit(request(0, [1, 2], 9), 0)
    second = request(1, [1, 2, 3, 4], 17)
    mock.submit(second, 100)
    mock.drain()
    assert [event for event in recorder.events if isinstance(event, Store)][1] == Store(
        "w", tuple(second.block_hashes[2:4]), (3, 4), second.block_hashes[1]
    )


def test_a_chunked_prefill_announces_each_chunk() -> None:
    mock, recorder = engine(chunk=8)
    mock.submit(request(0, [1, 2, 3, 4, 5], 21), 0)
    mock.run_until(0.9)
    assert stores(recorder.events) == []
    mock.run_until(1)
    assert stores(recorder.events) == [[1, 2]]
    mock.drain()
    assert stores(recorder.events) == [[1, 2], [3, 4], [5]]


def test_requests_of_one_step_share_blocks_that_are_announced_at_its_end() -> None:
    mock, recorder = engine(chunk=40)
    mock.submit(request(0, [], 1), 0)  # so that the next two begin together
    first, second = request(1, [1, 2], 9), request(2, [1, 2], 9)
    mock.submit(first, 0.5)
    mock.submit(second, 0.5)
    mock.run_until(1.9)
    assert (first.hit_tokens, second.hit_tokens) == (0, 8)
    assert (mock.depth(first.block_hashes), mock.announced_depth(first.block_hashes)) == (2, 0)
    assert stores(recorder.events) == []
    mock.run_until(2)
    assert stores(recorder.events) == [[1, 2]]
    assert first.first_token == second.first_token == 2


def test_what_a_dying_engine_computes_is_never_announced() -> None:
    mock, recorder = engine()
    mock.submit(request(0, [1, 2], 9), 0)
    mock.die(0.5)
    assert recorder.events == []
    assert mock.told


def test_decoding_announces_each_block_as_it_fills() -> None:
    mock, recorder = engine()
    # 6 prompt tokens and 7 generated ones; the last has no KV: 12 tokens, 3 blocks.
    one = request(0, [1], 6, output=7)
    mock.submit(one, 0)
    mock.run_until(1)
    assert one.first_token == 1
    assert len(stores(recorder.events)) == 1
    mock.run_until(2.9)
    assert len(stores(recorder.events)) == 1
    mock.run_until(3)
    assert len(stores(recorder.events)) == 2
    mock.drain()
    assert stores(recorder.events) == [[1], [1000], [1001]]
    assert one.finished == 7


def test_removals_of_a_step_come_before_its_store() -> None:
    mock, recorder = engine(blocks=2)
    mock.submit(request(0, [1, 2], 8), 0)
    mock.submit(request(1, [3, 4], 8), 100)
    mock.drain()
    assert [type(event) for event in recorder.events] == [Store, Remove, Remove, Store]


def test_one_more_than_max_running_waits() -> None:
    mock, _ = engine(max_running=2)
    for number in range(3):
        mock.submit(request(number, [number], 4, output=10), 0)
    mock.run_until(9)
    assert (len(mock.running), len(mock.waiting)) == (2, 1)
    mock.drain()
    assert mock.counters.peak_running == 2
    assert not mock.running


def test_a_request_waits_for_room_and_those_behind_it_too() -> None:
    mock, _ = engine(blocks=4)
    mock.submit(request(0, [1, 2, 3], 12, output=4), 0)
    large, small = request(1, [4, 5], 8), request(2, [6], 4)
    mock.submit(large, 1)
    mock.submit(small, 2)
    mock.run_until(3.5)
    assert large.state is small.state is State.WAITING
    mock.drain()
    # The room comes with the last token, at 4 s; then one step has place for both.
    assert large.first_token == small.first_token == 5


def test_the_request_admitted_last_is_preempted_and_finds_its_blocks_again() -> None:
    mock, recorder = engine(blocks=6)
    old, young = request(0, [1, 2], 8, output=9), request(1, [3, 4], 8, output=9)
    mock.submit(old, 0)
    mock.submit(young, 0)
    mock.drain()
    assert (old.preempted, young.preempted) == (0, 1)
    assert old.state is young.state is State.FINISHED
    assert young.first_token == 2
    assert mock.counters.prompt_tokens == 16
    assert mock.counters.prefill_tokens > 16
    assert holdings(recorder.events) == pool_holdings(mock)


def test_what_preemption_delays_is_a_gap() -> None:
    mock, _ = engine(blocks=6)
    for number in range(2):
        mock.submit(request(number, [10 * number + 1, 10 * number + 2], 8, output=9), 0)
    mock.drain()
    assert mock.gaps.count == 16  # between nine tokens each
    assert mock.gaps.quantile(1.0) > 2


def test_a_request_that_cannot_fit_is_refused() -> None:
    mock, _ = engine(blocks=3)
    assert not mock.submit(request(0, [], 13), 0)
    assert not mock.submit(request(1, [], 4, output=10), 0)
    assert mock.counters.refused == 2
    assert mock.submit(request(2, [], 4, output=9), 0)


def test_a_request_without_output_ends_with_its_prefill() -> None:
    mock, _ = engine()
    one = request(0, [1], 5, output=0)
    mock.submit(one, 0)
    mock.drain()
    assert one.first_token == one.finished == 1


def test_reset_clears_an_idle_engine_only() -> None:
    mock, recorder = engine()
    mock.submit(request(0, [1], 5), 0)
    assert not mock.reset()
    mock.drain()
    assert mock.reset()
    assert recorder.events[-1] == Clear("w")


def test_a_step_takes_base_and_prompt_and_requests_and_context() -> None:
    steps = StepTime(base=1.0, prefill=0.01, running=0.1, context=0.001)
    mock, _ = engine(steps)
    one = request(0, [], 20, output=3)
    mock.submit(one, 0)
    mock.drain()
    # A prompt of 20; then tokens that read 20 and 21 of KV.
    assert one.first_token == pytest.approx(1 + 0.2 + 0.1)
    assert one.finished == pytest.approx(1.3 + (1 + 0.1 + 0.020) + (1 + 0.1 + 0.021))


def test_a_prompt_slows_the_tokens_of_others() -> None:
    steps = StepTime(base=1.0, prefill=1.0, running=0.0, context=0.0)
    mock, _ = engine(steps, chunk=5)
    mock.submit(request(0, [], 1, output=5), 0)
    mock.run_until(2)
    mock.submit(request(1, [], 6), 2.5)  # chunks of 4 and 2 beside one that decodes
    mock.drain()
    assert mock.gaps.count == 4
    assert mock.gaps.total == pytest.approx(1 + (1 + 4) + (1 + 2) + 1)


def test_prompts_share_a_step() -> None:
    mock, _ = engine(chunk=16)
    small, next_one, large = request(0, [], 6), request(1, [], 5), request(2, [], 10)
    for each in (small, next_one, large):
        mock.submit(each, 0)
    # The first was alone when its step began.
    mock.drain()
    assert (small.first_token, next_one.first_token, large.first_token) == (1, 2, 2)


@pytest.mark.parametrize("when", [3.0, 3.4, 17.2])
def test_a_request_that_comes_while_others_decode_begins_with_the_next_step(when: float) -> None:
    mock, _ = engine(StepTime(base=1.0, prefill=0.0, running=0.0, context=0.001))
    mock.submit(request(0, [], 8, output=90), 0)
    late = request(1, [], 5)
    mock.submit(late, when)
    ends, now, context = [], 1.0, 8
    while now < when + 3:
        ends.append(now)
        now += 1 + 0.001 * context
        context += 1
    begin = next(end for end in ends if end >= when - 1e-9)
    mock.drain()
    assert late.first_token is not None
    assert late.first_token == pytest.approx(begin + 1 + 0.001 * (8 + ends.index(begin)))


def test_many_steps_at_once_take_as_long_as_one_by_one() -> None:
    steps = StepTime(base=0.01, prefill=1e-4, running=1e-3, context=1e-5)
    mock, _ = engine(steps, block_size=512, blocks=8)
    one = request(0, [], 5, output=400)
    mock.submit(one, 0)
    mock.drain()
    each = [steps.of(5, 1, 0), *(steps.of(0, 1, 5 + token) for token in range(399))]
    assert one.finished == pytest.approx(sum(each))
    assert mock.gaps.count == 399
    assert mock.gaps.total == pytest.approx(sum(each[1:]))
    assert mock.gaps.quantile(0.5) == pytest.approx(np.median(each[1:]), rel=0.02)


def test_what_dies_gives_back_its_requests() -> None:
    mock, _ = engine(max_running=1)
    requests = [request(number, [], 5, output=50) for number in range(3)]
    for each in requests:
        mock.submit(each, 0)
    assert mock.die(10) == requests
    assert mock.due is None


def share(engines: int, blocks: int) -> list[SteppedEngine]:
    """Engines of one pool."""
    pool = BlockPool(blocks)
    config = EngineConfig(block_size=SIZE, blocks=blocks, chunk=None)
    return [SteppedEngine(f"w{n}", config, SECOND, Recorder(), None, pool) for n in range(engines)]


def test_what_dies_gives_its_blocks_back_to_a_shared_pool() -> None:
    one, other = share(2, 4)
    one.submit(request(0, [1, 2], 10, output=6), 0)
    other.submit(request(1, [3, 4], 10, output=2), 1)
    assert other.due is None  # no room
    one.die(2)
    other.look_for_room(2)
    other.drain()
    assert (other.counters.prompt_tokens, other.pool.free) == (10, 4)


def test_a_run_of_decoding_steps_ends_where_others_give_room_back() -> None:
    one, other = share(2, 6)
    for n, contents in enumerate(([1, 2, 3, 4], [5, 6, 7, 8])):
        (one, other)[n].submit(request(n, contents, (1, 14)[n], output=(4, 2)[n]), 0)
    late = request(2, [11, 12], 12, output=1)
    one.submit(late, 0.5)
    one.run_until(2)
    other.run_until(2)  # it ends there: the pool has room
    due = one.due
    one.look_for_room(2.5)
    assert due == 4
    assert one.due == 3
    one.drain()
    assert late.first_token == 4


def test_a_slow_machine_takes_longer_for_everything() -> None:
    steps = find_hardware("h100x4")
    assert steps.slower(2.0).of(512, 3, 1e5) == pytest.approx(2 * steps.of(512, 3, 1e5))
    with pytest.raises(ConfigError, match="a100x4"):
        find_hardware("abacus")
    assert all(0.005 < its.base < 0.06 for its in HARDWARE.values())


@pytest.mark.parametrize("name", ["base", "prefill", "running", "context"])
def test_a_step_that_cannot_be_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        StepTime(**{name: -1.0})


def test_quantiles_of_gaps_are_within_a_percent() -> None:
    rng = random.Random(1)
    gaps, values = Gaps(), [rng.lognormvariate(-3, 1) for _ in range(5_000)]
    for value in values:
        gaps.add(value)
    for share in (0.1, 0.5, 0.99):
        assert gaps.quantile(share) == pytest.approx(float(np.quantile(values, share)), rel=0.02)
    assert gaps.mean == pytest.approx(float(np.mean(values)))


@pytest.mark.parametrize("seed", range(8))
def test_any_run_keeps_the_books(seed: int) -> None:
    """Random load: announcements give what the pool holds, the index is right, all end, and time never goes back."""
    rng = random.Random(seed)
    mock, recorder = engine(
        StepTime(rng.choice([0.02, 1.0]), rng.choice([0.0, 0.01]), 0.01, 0.001),
        blocks=rng.choice([12, 40, 200]),
        max_running=rng.choice([1, 3, 50]),
        chunk=rng.choice([None, 4, 7, 16]),
    )
    index = BlockIndex(block_size=SIZE)
    requests = []
    now, applied = 0.0, 0
    for number in range(150):
        now += rng.expovariate(0.3)
        family, length = rng.randrange(4), rng.randint(1, 8)
        contents = [family * 10 + i + 1 for i in range(length)]
        each = request(number, contents, length * SIZE + rng.choice([0, 0, 1, 3]), output=rng.randint(0, 14))
        requests.append(each)
        mock.submit(each, now)
        fresh = recorder.events[applied:]
        applied = len(recorder.events)
        index.apply(fresh)
        assert not mock.told or holdings(recorder.events) == pool_holdings(mock)
        query = each.content_hashes[: each.prompt_tokens // SIZE]
        assert index.find(content_hashes=query).depth == mock.announced_depth(each.block_hashes[: query.size])
    mock.drain()
    assert all(each.state in {State.FINISHED, State.REFUSED} for each in requests)
    assert mock.pool.free == mock.pool.size
    done = [each for each in requests if each.state is State.FINISHED]
    assert mock.counters.prompt_tokens == sum(each.prompt_tokens for each in done)
    assert mock.gaps.count == sum(max(each.output_tokens, 1) - 1 for each in done)
    for each in done:
        times = [each.arrival, each.first_token, each.finished]
        assert all(a is not None and b is not None and a <= b for a, b in pairwise(times))


def test_listening_is_optional() -> None:
    mock = SteppedEngine("w", EngineConfig(block_size=SIZE, blocks=2), SECOND, NullSink())
    mock.submit(request(0, [1, 2], 8), 0)
    mock.drain()
    assert mock.reset()
