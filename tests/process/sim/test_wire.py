"""The engines' payloads beside the project's own codec: the same bytes, and read to the same answers.

Engines encode by msgspec from declared structs, `kvatlas.wire` by hand: neither knows of the other.
"""

import asyncio
import random
from dataclasses import replace

import pytest

from kvatlas import BlockIndex
from kvatlas.sim.server import EngineServer, Faults, ServerConfig
from kvatlas.sim.server.events import Cleared, Dialect, Event, Placeholder, Removed, Stored
from kvatlas.sim.server.names import lora_id
from kvatlas.sim.server.payload import encode, rows

from .conftest import FAST, replay

wire = pytest.importorskip("kvatlas.wire", exc_type=ImportError)

DIALECTS: tuple[Dialect, ...] = ("vllm", "sglang", "vllm-arrays", "sglang-arrays")


def some_events(chance: random.Random, dialect: Dialect) -> list[Event]:
    def name() -> int | bytes:
        if dialect.startswith("sglang"):
            return chance.randrange(-(1 << 63), 1 << 63) >> chance.randrange(64)
        return chance.randbytes(32) if chance.random() < 0.3 else chance.getrandbits(64) >> chance.randrange(64)

    found: list[Event] = []
    for _ in range(chance.randrange(1, 40)):
        kind = chance.randrange(5)
        if kind == 0:
            found.append(Cleared())
        elif kind < 3:
            found.append(Removed([name() for _ in range(chance.choice((1, 2, 20)))]))
        else:
            count = chance.choice((1, 2, 17))
            tokens = [chance.getrandbits(32) >> chance.randrange(32) for _ in range(4 * count)]
            lora, salt = chance.choice((None, "a", "ä" * 40)), chance.choice((None, "s", "x" * 300))
            parent = None if chance.random() < 0.5 else name()
            found.append(Stored([name() for _ in range(count)], parent, tokens, lora, salt))
    return found


def theirs(event: Event, dialect: Dialect) -> object:
    vllm = dialect.startswith("vllm")
    match event:
        case Cleared():
            return wire.Cleared()
        case Removed(names):
            return wire.Removed(names, medium="GPU", group_idx=0 if vllm else None)
        case Placeholder(names, tier):
            return wire.Stored(names, None, [], 0, medium=tier, group_idx=0)
        case Stored(names, parent, tokens, lora, salt):
            number = int(lora_id(lora)[:6], 16) if lora and vllm else None
            about = {"group_idx": 0, "kind": "full_attention", "lora_id": number} if vllm else {}
            return wire.Stored(names, parent, tokens, 4, medium="GPU", lora=lora, salt=salt, **about)


def test_offloaded_blocks_are_sent_as_vllm_sends_them() -> None:
    """Offloaded blocks have no extra keys, those of a folder have its locality, and those told by name have no size."""
    events: list[Event] = [
        Stored([1, 2], 7, list(range(8)), "a", None, "CPU"),
        Stored([3], None, list(range(4)), None, None, "STORAGE", "REMOTE"),
        Placeholder([4], "CPU"),
        Removed([1, 2], "CPU"),
    ]
    payload = encode(rows(events, block_size=4, dialect="vllm"), timestamp=1.0, rank=0)
    assert b"extra_keys" not in payload
    cpu, folder, named, removed = wire.decode_batch(payload).events
    assert isinstance(cpu, wire.Stored)
    assert (cpu.tier, cpu.block_hashes, cpu.parent, cpu.lora, cpu.locality) == ("cpu", (1, 2), 7, "a", None)
    assert isinstance(folder, wire.Stored)
    assert (folder.tier, folder.medium, folder.locality) == ("external", "STORAGE", "REMOTE")
    assert isinstance(named, wire.Stored)
    assert (named.tier, named.block_hashes, named.block_size, list(named.tokens)) == ("cpu", (4,), 0, [])
    assert isinstance(removed, wire.Removed)
    assert (removed.tier, removed.block_hashes) == ("cpu", (1, 2))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_same_bytes(dialect: Dialect) -> None:
    for seed in range(100):
        chance = random.Random(seed)
        events = some_events(chance, dialect)
        timestamp, rank = chance.random() * 2e9, chance.choice((0, 1, 127, 128, 1_000))
        mine = encode(rows(events, block_size=4, dialect=dialect), timestamp=timestamp, rank=rank)
        other = wire.encode_batch(
            [theirs(event, dialect) for event in events], timestamp=timestamp, rank=rank, dialect=dialect
        )
        assert mine == other


@pytest.mark.parametrize(
    "kind",
    [
        ServerConfig(),
        ServerConfig(hash_bytes=True),
        ServerConfig(arrays=True),
        ServerConfig(dialect="sglang"),
        ServerConfig(dialect="sglang", arrays=True),
    ],
    ids=lambda kind: f"{kind.wire}{'-bytes' if kind.hash_bytes else ''}",
)
def test_the_index_agrees_with_the_engine(kind: ServerConfig) -> None:
    poison = Faults(poison_event=0.2, poison_type=0.2, poison_payload=0.2)
    settings = replace(kind, engine=FAST, step=0.001, faults=poison)
    chance = random.Random(7)
    heads = [[chance.randrange(500) for _ in range(n)] for n in (9, 30)]

    def query() -> tuple[list[int], str | None, str | None]:
        tokens = [*chance.choice(heads), *(chance.randrange(3) for _ in range(chance.randrange(1, 12)))]
        return tokens, chance.choice((None, "a")), chance.choice((None, "x", "y"))

    async def run() -> None:
        async with EngineServer(settings) as engine:
            for _ in range(8):
                sent = [query() for _ in range(12)]
                await asyncio.gather(*(engine.complete(t, 9, lora=lora, salt=salt) for t, lora, salt in sent))
            while not engine.state()[0].quiet:
                await asyncio.sleep(0.005)
            index = BlockIndex(block_size=FAST.block_size)
            for frames in await asyncio.to_thread(replay, engine.replay_endpoint()):
                try:
                    batch = wire.decode_batch(frames[-1])
                except ValueError:
                    continue
                index.apply("w", batch)
            found = 0
            for tokens, lora, salt in [query() for _ in range(200)]:
                truth = engine.match(tokens, lora=lora, salt=salt)
                assert index.find(tokens=tokens, lora=lora, salt=salt).scores().get("w", 0) == truth.held
                found += truth.held
            assert found > 50

    asyncio.run(run())
