"""Names of blocks, held against values that real engines gave."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvatlas.sim.server import names as module
from kvatlas.sim.server.names import SglangNames, VllmNames

TOKENS = [1, 2, 3, 4, 5, 6, 7, 8]


def wire(names: VllmNames | SglangNames, tokens: list[int], size: int, *key: str | None) -> list[int | bytes]:
    lora, salt = [*key, None, None][:2]
    return [names.wire(name) for name in names.chain(tokens, size, lora, salt)]


def test_vllm_names_are_sha256_over_cbor() -> None:
    assert wire(VllmNames(), TOKENS, 4) == [9561501211280363793, 15292913576410714033]


def test_vllm_names_as_whole_digests() -> None:
    first, second = wire(VllmNames(as_bytes=True), TOKENS, 4)
    assert first == bytes.fromhex("58d0879dff3800f65f8c5fd449d73048c0f7699dd238a03b84b146b151d55111")
    assert second == bytes.fromhex("e1bc29393a2da9fd798f35ff04d215f846aee6df4b803ce3d43b57df56b58fb1")


def test_vllm_names_with_adapter_and_salt() -> None:
    assert wire(VllmNames(), TOKENS, 4, "adapter-a", "tenant-1")[0] == 16760954675009199698


def test_vllm_names_follow_the_seed() -> None:
    assert wire(VllmNames("0"), TOKENS, 4)[0] == 2164874634404590027


def test_sglang_names_are_sha256_over_tokens() -> None:
    assert wire(SglangNames(), [1, 2, 3, 4], 2) == [3817746824117602890, -4216701448867210342]


@pytest.mark.parametrize("names", [VllmNames(), SglangNames(), VllmNames("x"), SglangNames("x")])
def test_another_adapter_or_salt_or_prefix_is_another_block(names: VllmNames | SglangNames) -> None:
    seen = set[int]()
    for lora in (None, "a", "b"):
        for salt in (None, "a", "b"):
            seen.update(names.chain(TOKENS * 2, 4, lora, salt))
    assert len(seen) == 3 * 3 * 4


def test_a_seed_of_its_own_names_every_block_differently() -> None:
    for make in (VllmNames, SglangNames):
        assert not set(make("1").chain(TOKENS, 4, None, None)) & set(make("2").chain(TOKENS, 4, None, None))


def test_only_full_blocks_have_names() -> None:
    for names in (VllmNames(), SglangNames()):
        assert [len(names.chain(TOKENS[:n], 4, None, None)) for n in range(9)] == [0, 0, 0, 0, 1, 1, 1, 1, 2]


def truths(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt") as file:
        for line in file:
            record = json.loads(line)
            if record["type"] == "truth":
                yield record


def test_a_recorded_vllm_names_its_blocks_alike(engine_streams: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "lora_path", lambda name: f"lora-weights/{name}")
    names, compared = VllmNames("0", as_bytes=True), 0
    for truth in truths(engine_streams / "vllm-0.33.0-bytes.jsonl.gz"):
        mine = wire(names, truth["token_ids"], 16, truth["lora_name"], truth["cache_salt"])
        assert [name.hex() for name in mine if isinstance(name, bytes)] == truth["block_hashes"]
        compared += len(mine)
    assert compared > 500


def test_a_recorded_vllm_with_pickles_names_its_blocks_alike(engine_streams: Path) -> None:
    names, compared = VllmNames(algorithm="sha256"), 0
    for truth in truths(engine_streams / "vllm-0.33.0.jsonl.gz"):
        if truth["lora_name"] is None:
            assert wire(names, truth["token_ids"], 16, None, truth["cache_salt"]) == truth["block_hashes"]
            compared += truth["full_blocks"]
    assert compared > 2_000


def test_a_recorded_sglang_names_its_blocks_alike(engine_streams: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = {"adapter-a": "28761e9640c8e70407da46ebc4a61916", "adapter-b": "ee85b8ca5d657d7f1da835fb24916cb6"}
    monkeypatch.setattr(module, "lora_id", lambda name: ids.get(name, name))
    names, compared = SglangNames(), 0
    for truth in truths(engine_streams / "sglang-0.5.23.jsonl.gz"):
        if truth["lora_name"] not in (None, *ids):
            continue
        assert wire(names, truth["token_ids"], 16, truth["lora_name"], truth["cache_salt"]) == truth["block_hashes"]
        compared += truth["full_blocks"]
    assert compared > 2_000
