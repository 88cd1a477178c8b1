"""Tests of the hashes of made-up content."""

import numpy as np

from kvatlas._hashes import mix
from kvatlas.sim.hashing import expand, output_blocks, rename


def test_mix_is_the_finalizer_of_splitmix64() -> None:
    # The first numbers of SplitMix64 from seed 0: mix(1 * golden), mix(2 * golden).
    golden = np.uint64(0x9E3779B97F4A7C15)
    seeds = np.arange(1, 3, dtype=np.uint64) * golden
    assert [hex(value) for value in mix(seeds).tolist()] == ["0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4"]


def test_everything_is_distinct() -> None:
    contents = np.concatenate(
        [
            expand(np.arange(2_000, dtype=np.uint64), 32),
            *(output_blocks(request, 0, 40) for request in range(500)),
        ]
    )
    assert np.unique(contents).size == contents.size == 2_000 * 32 + 500 * 40


def test_parts_do_not_depend_on_how_many_there_are() -> None:
    assert expand(np.array([7], dtype=np.uint64), 4).tolist() == expand(np.array([7], dtype=np.uint64), 32).tolist()[:4]


def test_output_blocks_can_be_made_in_pieces() -> None:
    assert output_blocks(3, 2, 5).tolist() == output_blocks(3, 0, 7).tolist()[2:]


def test_engines_rename_differently() -> None:
    names = np.arange(100, dtype=np.uint64)
    assert np.unique(np.concatenate([names, rename(names, 0), rename(names, 1)])).size == 300
