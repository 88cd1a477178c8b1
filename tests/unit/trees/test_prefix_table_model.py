"""SyncPrefixHashTable against the plain model, with random events; and from many threads."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from kvatlas.trees import AllBlocksCleared, BlockRemoved, BlockStored, SyncPrefixHashTable

from .prefix_table_model import PrefixTableModel

CONTEXTS = [("m", -1), ("m", 2), ("n", -1)]


@pytest.mark.parametrize("seed", range(40))
def test_random_events(seed: int) -> None:
    choose = random.Random(seed)
    size = choose.choice([1, 4, 16, 24])
    hash_seed = choose.choice([0, 1337, 2**64 - 1])
    model = PrefixTableModel(size, hash_seed)
    pods = [f"pod{number}" for number in range(choose.randint(1, 6))]
    names: list[int | bytes] = [*range(-3, choose.randint(3, 30)), b"digest", 2**64 - 1]
    blocks = [bytes([value]) * size for value in range(choose.randint(1, 3))]
    with SyncPrefixHashTable(block_size=size, seed=hash_seed) as table:
        for _ in range(200):
            (name, lora), pod = choose.choice(CONTEXTS[: choose.choice([1, 3])]), choose.choice(pods)
            count = choose.randint(1, 4)
            content = [b"".join(choose.choices(blocks, k=choose.choice([1, 1, 1, 2]))) for _ in range(count)]
            chosen = choose.choices(names, k=count)
            what = choose.random()
            if what < 0.4:
                stored = BlockStored(
                    block_hashes=chosen,
                    model_name=name,
                    lora_id=lora,
                    source_pod=pod,
                    parent_block_hash=choose.choice([None, choose.choice(names)]),
                    tokens=content,
                )
                assert table.process_block_stored(stored) == model.stored(stored)
            elif what < 0.65:
                removed = BlockRemoved(block_hashes=chosen, model_name=name, lora_id=lora, source_pod=pod)
                table.process_block_removed(removed)
                model.removed(removed)
            elif what < 0.75:
                prompt = b"".join(content)
                hashes = table.get_prefix_hashes(prompt)
                assert hashes.tolist() == model.hashes(prompt)
                table.add_prefix(name, lora, pod, hashes)
                model.add(name, lora, pod, hashes)
            elif what < 0.78:
                cleared = AllBlocksCleared(source_pod=pod, model_name=choose.choice([None, name]), lora_id=lora)
                table.process_all_blocks_cleared(cleared)
                model.cleared(cleared)
            elif what < 0.8:
                table.remove_prefix(name, lora, pod)
                model.cleared(AllBlocksCleared(source_pod=pod, model_name=name, lora_id=lora))
            prompt = b"".join(content) + b"x" * choose.randint(0, 2)
            ready = choose.choice([None, choose.sample(pods, choose.randint(0, len(pods)))])
            percents, hashes = table.match_prefix(name, lora, prompt, ready)
            assert percents == model.match(name, lora, prompt, ready)
            assert hashes.tolist() == model.hashes(prompt)
        assert table.stats()["prefixes"] == model.entries()


def test_from_many_threads_the_end_is_that_of_the_model() -> None:
    """Each thread is one pod's engine: what it holds in the end does not depend on the others."""
    size = 4
    model = PrefixTableModel(size, 5)
    table = SyncPrefixHashTable(block_size=size, seed=5, eviction_interval=0.001)

    def events(pod: str) -> list[BlockStored | BlockRemoved | AllBlocksCleared]:
        choose = random.Random(pod)
        found: list[BlockStored | BlockRemoved | AllBlocksCleared] = []
        for _ in range(400):
            chosen = choose.choices(range(40), k=choose.randint(1, 6))
            what = choose.random()
            if what < 0.6:
                content = [bytes([choose.randint(0, 2)]) * size for _ in chosen]
                parent = choose.choice([None, choose.randrange(40)])
                found.append(
                    BlockStored(
                        block_hashes=chosen, model_name="m", source_pod=pod, parent_block_hash=parent, tokens=content
                    )
                )
            elif what < 0.99:
                found.append(BlockRemoved(block_hashes=chosen, model_name="m", source_pod=pod))
            else:
                found.append(AllBlocksCleared(source_pod=pod))
        return found

    streams = {f"pod{number}": events(f"pod{number}") for number in range(6)}

    def apply(pod: str) -> None:
        for event in streams[pod]:
            match event:
                case BlockStored():
                    table.process_block_stored(event)
                case BlockRemoved():
                    table.process_block_removed(event)
                case AllBlocksCleared():
                    table.process_all_blocks_cleared(event)
            percents, _ = table.match_prefix("m", -1, bytes(size) * 3)
            assert all(percent in {33, 66, 100} for percent in percents.values())

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(apply, streams))
    for stream in streams.values():
        for event in stream:
            match event:
                case BlockStored():
                    model.stored(event)
                case BlockRemoved():
                    model.removed(event)
                case AllBlocksCleared():
                    model.cleared(event)
    choose = random.Random(1)
    for _ in range(300):
        prompt = b"".join(bytes([choose.randint(0, 2)]) * size for _ in range(choose.randint(1, 6)))
        assert table.match_prefix("m", -1, prompt)[0] == model.match("m", -1, prompt, None)
    assert table.stats()["prefixes"] == model.entries()
    for pod in streams:
        table.process_all_blocks_cleared(AllBlocksCleared(source_pod=pod))
    assert table.stats()["prefixes"] == table.stats()["contexts"] == 0
