"""The rules of the simulated engine, one test each."""

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from kvatlas import BlockIndex, prefix_hashes
from kvatlas.events import Clear, Event, Remove, Store
from kvatlas.reference import ReferenceIndex
from kvatlas.sim import Engine, EngineConfig, NullSink, Recorder, Request, State

SIZE = 4


def request(number: int, contents: Sequence[int], prompt: int, output: int = 1) -> Request:
    """A request whose blocks of 4 tokens hold `contents`; blocks of the output too."""
    needed = (prompt + max(output, 1) - 1) // SIZE
    blocks = [*contents, *(1000 * (number + 1) + i for i in range(needed - len(contents)))][:needed]
    hashes = np.array(blocks, dtype=np.uint64)
    return Request(number, prompt, output, hashes, prefix_hashes(hashes).tolist())


def engine(**config: Any) -> tuple[Engine, Recorder]:
    recorder = Recorder()
    defaults = {"block_size": SIZE, "blocks": 100, "prefill_rate": 1.0, "decode_rate": 1.0, "chunk": None}
    return Engine("w", EngineConfig(**{**defaults, **config}), recorder), recorder


def stores(events: Sequence[Event]) -> list[list[int]]:
    return [list(event.content_hashes) for event in events if isinstance(event, Store)]


def removed(events: Sequence[Event]) -> list[int | bytes]:
    return [event.block_hashes[0] for event in events if isinstance(event, Remove)]


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


def test_the_recomputed_last_block_of_an_aligned_repeat_is_a_second_copy() -> None:
    mock, recorder = engine(blocks=3)
    mock.submit(request(0, [1, 2], 8), 0)
    mock.submit(request(1, [1, 2], 8), 100)
    mock.drain()
    assert stores(recorder.events) == [[1, 2], [2]]
    name = request(0, [1, 2], 8).block_hashes[1]
    assert mock.pool.copies(name) == 2
    # Something else pushes everything out: the copy is removed again.
    mock.submit(request(2, [7, 8, 9], 12), 200)
    mock.drain()
    assert Counter(removed(recorder.events)) == Counter([name, name, request(0, [1], 4).block_hashes[0]])


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
    mock.run_until(7.9)
    assert stores(recorder.events) == []
    mock.run_until(8)
    assert stores(recorder.events) == [[1, 2]]
    mock.run_until(20.9)
    assert stores(recorder.events) == [[1, 2], [3, 4]]
    mock.drain()
    assert stores(recorder.events) == [[1, 2], [3, 4], [5]]
    parents = [event.parent for event in recorder.events if isinstance(event, Store)]
    names = request(0, [1, 2, 3, 4, 5], 21).block_hashes
    assert parents == [None, names[1], names[3]]


def test_blocks_are_shared_before_they_are_announced() -> None:
    mock, recorder = engine()
    one = request(0, [1, 2], 9, output=30)
    mock.submit(one, 0)
    mock.run_until(8.9)  # its one step ends at 9 s
    assert (mock.depth(one.block_hashes), mock.announced_depth(one.block_hashes), mock.told) == (2, 0, False)
    assert recorder.events == []
    mock.run_until(9)
    assert (mock.announced_depth(one.block_hashes), mock.told) == (2, True)
    assert stores(recorder.events) == [[1, 2]]


def test_what_decoding_fills_during_a_chunk_is_announced_with_it() -> None:
    mock, recorder = engine(prefill_rate=1.0)
    mock.submit(request(0, [1], 4, output=9), 0)
    mock.submit(request(1, [7, 8, 9], 12), 4)
    mock.run_until(15.9)
    assert stores(recorder.events) == [[1]]
    mock.run_until(16)
    assert stores(recorder.events) == [[1], [7, 8, 9], [1000], [1001]]


def test_chunks_that_end_inside_a_block_announce_it_when_it_is_full() -> None:
    mock, recorder = engine(chunk=6)
    mock.submit(request(0, [1, 2, 3], 13), 0)
    mock.drain()
    assert stores(recorder.events) == [[1], [2, 3]]


def test_decoding_announces_each_block_as_it_fills() -> None:
    mock, recorder = engine()
    # 6 prompt tokens and 7 generated ones; the last has no KV: 12 tokens, 3 blocks.
    one = request(0, [1], 6, output=7)
    mock.submit(one, 0)
    mock.run_until(6)
    assert one.first_token == 6
    assert len(stores(recorder.events)) == 1
    mock.run_until(7.9)
    assert len(stores(recorder.events)) == 1
    mock.run_until(8)
    assert len(stores(recorder.events)) == 2
    mock.drain()
    assert stores(recorder.events) == [[1], [1001 - 1], [1002 - 1]]
    assert one.finished == 12


def test_the_last_generated_token_has_no_kv() -> None:
    mock, recorder = engine()
    mock.submit(request(0, [1], 4, output=4), 0)
    mock.submit(request(1, [2], 4, output=5), 100)
    mock.drain()
    assert [len(blocks) for blocks in stores(recorder.events)] == [1, 1, 1]


def test_removals_of_a_step_come_before_its_store() -> None:
    mock, recorder = engine(blocks=2)
    mock.submit(request(0, [1, 2], 8), 0)
    mock.submit(request(1, [3, 4], 8), 100)
    mock.drain()
    kinds = [type(event) for event in recorder.events]
    assert kinds == [Store, Remove, Remove, Store]
    names = request(0, [1, 2], 8).block_hashes
    assert removed(recorder.events) == names[::-1]


def test_time_to_first_token_is_queue_wait_and_uncached_tokens() -> None:
    mock, _ = engine(prefill_rate=10.0)
    first, second, third = request(0, [1, 2], 9), request(1, [3], 5), request(2, [1, 2], 10)
    mock.submit(first, 0)
    mock.submit(second, 0.1)
    mock.submit(third, 50)
    mock.drain()
    assert first.first_token == pytest.approx(0.9)
    assert second.first_token == pytest.approx(1.4)
    assert third.first_token == pytest.approx(50.2)


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
    mock.submit(request(0, [1, 2, 3], 12, output=1), 0)
    large, small = request(1, [4, 5], 8), request(2, [6], 4)
    mock.submit(large, 1)
    mock.submit(small, 2)
    mock.run_until(11)
    assert large.state is small.state is State.WAITING
    mock.drain()
    assert large.first_token == 20
    assert small.first_token == 24


def test_cached_blocks_that_a_request_uses_are_not_room_for_it() -> None:
    mock, _ = engine(blocks=4)
    mock.submit(request(0, [1, 2, 3], 13), 0)
    mock.drain()
    # 3 of 4 blocks are cached and free. This one hits them all and needs 1 more: there is just room.
    fits = request(1, [1, 2, 3], 16)
    mock.submit(fits, 100)
    mock.drain()
    assert fits.state is State.FINISHED
    assert fits.hit_tokens == 12


def test_the_request_admitted_last_is_preempted_and_finds_its_blocks_again() -> None:
    mock, recorder = engine(blocks=6)
    old, young = request(0, [1, 2], 8, output=9), request(1, [3, 4], 8, output=9)
    mock.submit(old, 0)
    mock.submit(young, 0)
    mock.drain()
    assert (old.preempted, young.preempted) == (0, 1)
    assert mock.counters.preemptions == 1
    assert old.state is young.state is State.FINISHED
    assert old.finished is not None
    assert young.finished is not None
    assert young.finished > old.finished
    # It had its first token before; that it computes again does not count twice as a prompt.
    assert young.first_token == 16
    assert mock.counters.prompt_tokens == 16
    assert mock.counters.prefill_tokens > 16
    assert holdings(recorder.events) == pool_holdings(mock)


def test_a_preempted_request_goes_to_the_head_of_the_queue() -> None:
    mock, _ = engine(blocks=6)
    requests = [request(number, [10 * number + 1, 10 * number + 2], 8, output=13) for number in range(3)]
    for each in requests:
        mock.submit(each, 0)
    mock.run_until(18)
    assert requests[1].preempted == 1
    assert list(mock.waiting) == requests[1:]
    mock.drain()
    assert all(each.state is State.FINISHED for each in requests)


def test_a_request_that_cannot_fit_is_refused() -> None:
    mock, recorder = engine(blocks=3)
    assert not mock.submit(request(0, [], 13), 0)
    assert not mock.submit(request(1, [], 4, output=10), 0)
    assert mock.counters.refused == 2
    assert mock.submit(request(2, [], 4, output=9), 0)
    mock.drain()
    assert len(stores(recorder.events)) == 3


def test_a_request_without_output_ends_with_its_prefill() -> None:
    mock, _ = engine()
    one = request(0, [1], 5, output=0)
    mock.submit(one, 0)
    mock.drain()
    assert one.first_token == one.finished == 5


def test_reset_clears_an_idle_engine_only() -> None:
    mock, recorder = engine()
    mock.submit(request(0, [1], 5), 0)
    assert not mock.reset()
    mock.drain()
    assert mock.reset()
    assert recorder.events[-1] == Clear("w")
    assert mock.depth(request(0, [1], 5).block_hashes) == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [("blocks", 0), ("block_size", 0), ("max_running", 0), ("prefill_rate", 0.0), ("decode_rate", -1.0), ("chunk", 0)],
)
def test_a_config_that_cannot_be_is_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        EngineConfig(**{name: value})  # type: ignore[arg-type]


def test_listening_is_optional() -> None:
    mock = Engine("w", EngineConfig(block_size=SIZE, blocks=2), NullSink())
    mock.submit(request(0, [1, 2], 8), 0)
    mock.submit(request(1, [3, 4], 8), 0)
    mock.drain()
    assert mock.reset()


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


def pool_holdings(mock: Engine) -> Counter[int | bytes]:
    pool = mock.pool
    return Counter({name: pool.copies(name) for name in pool._first})


@pytest.mark.parametrize("seed", range(12))
def test_any_run_keeps_the_books(seed: int) -> None:
    """Random load: counting announcements gives what the pool holds, parents outlive children, all requests end."""
    rng = random.Random(seed)
    mock, recorder = engine(
        blocks=rng.choice([12, 40, 200]),
        max_running=rng.choice([1, 3, 50]),
        chunk=rng.choice([None, 4, 7, 16]),
        decode_rate=rng.choice([0.5, 3.0]),
        prefill_rate=rng.choice([2.0, 50.0]),
    )
    index, reference = BlockIndex(block_size=SIZE), ReferenceIndex(block_size=SIZE)
    requests = []
    now, applied = 0.0, 0
    parents: dict[int | bytes, int | bytes | None] = {}
    held: Counter[int | bytes] = Counter()
    for number in range(150):
        now += rng.expovariate(0.3)
        family = rng.randrange(4)
        length = rng.randint(1, 8)
        each = request(
            number,
            [family * 10 + i + 1 for i in range(length)],
            length * SIZE + rng.choice([0, 0, 1, 3]),
            output=rng.randint(0, 14),
        )
        requests.append(each)
        mock.submit(each, now)
        fresh = recorder.events[applied:]
        applied = len(recorder.events)
        for event in fresh:
            if isinstance(event, Store):
                chain: list[int | bytes | None] = [event.parent, *event.block_hashes]
                parents.update(zip(event.block_hashes, chain, strict=False))
                held.update(event.block_hashes)
            elif isinstance(event, Remove):
                held.subtract(event.block_hashes)
            present = +held
            assert all(parents[name] is None or parents[name] in present for name in present)
        index.apply(fresh)
        reference.apply(fresh)
        assert not mock.told or +held == pool_holdings(mock)
        query = each.content_hashes[: each.prompt_tokens // SIZE]
        true = mock.announced_depth(each.block_hashes[: query.size])
        assert index.find(content_hashes=query).depth == reference.find(content_hashes=query.tolist()).depth == true
    mock.drain()
    assert all(each.state in {State.FINISHED, State.REFUSED} for each in requests)
    assert mock.pool.free == mock.pool.size
    assert holdings(recorder.events) == pool_holdings(mock)
    done = [each for each in requests if each.state is State.FINISHED]
    assert mock.counters.prompt_tokens == sum(each.prompt_tokens for each in done)
    assert mock.counters.hit_tokens == sum(each.hit_tokens for each in done)
