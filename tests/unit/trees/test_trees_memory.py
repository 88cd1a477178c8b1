"""The memory of the trees: `bytes` is what the process takes, and long prompts cost no stack."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvatlas.trees import StringTree, TokenTree

from .prompts import find

SAYS = """
import gc, os, sys
import numpy as np
from kvatlas.trees import StringTree, TokenTree

def taken():
    gc.collect()
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

kind = sys.argv[1]
tree = StringTree() if kind == "text" else TokenTree()
choose = np.random.default_rng(1)
beginnings = choose.integers(0, 2**16, (50, 512)).astype(np.uint32)
before = taken()
for at in range(20_000):
    end = choose.integers(0, 2**16, 64).astype(np.uint32)
    prompt = np.concatenate([beginnings[at % 50], end])
    tree.insert(prompt.tobytes().decode("latin-1") if kind == "text" else prompt, f"w{at % 40}")
print(tree.bytes, taken() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the kernel does not say what a process takes")
@pytest.mark.parametrize("kind", ["text", "tokens"])
def test_bytes_is_what_the_process_takes(kind: str) -> None:
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SAYS, kind],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "MALLOC_ARENA_MAX": "1"},
    )
    said, taken = map(int, run.stdout.split())
    assert said > 5_000_000
    assert 0.6 < said / taken < 1.4, (said, taken)


def with_small_stack(work: Callable[[], None]) -> None:
    """Run `work` in a thread with 128 KiB of stack."""
    before = threading.stack_size(128 * 1024)
    try:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(work).result()
    finally:
        threading.stack_size(before)


LENGTH = 4_000_000


@pytest.mark.parametrize(
    ("make", "key", "other"),
    [
        (StringTree, "é漢" * (LENGTH // 2), "é漢" * (LENGTH // 4) + "漢!"),
        (TokenTree, np.arange(LENGTH, dtype=np.uint32), np.arange(LENGTH // 2 + 16, dtype=np.uint32) % (LENGTH // 2)),
    ],
    ids=["text", "tokens"],
)
def test_prompts_of_millions(make: Callable[[], Any], key: Any, other: Any) -> None:
    def work() -> None:
        tree = make()
        tree.insert(key, "w")
        assert tree.match_and_insert(other, "v").matched == LENGTH // 2
        assert find(tree, key).scores() == {"w": LENGTH, "v": LENGTH // 2}
        assert tree.node_count == 3
        assert tree.tenant_sizes() == tree.get_used_size_per_tenant() == {"v": len(other), "w": LENGTH}
        assert tree.evict_tenant("w", LENGTH - 1) == LENGTH // 2
        matched, tenant = tree.prefix_match_legacy(key)
        assert (len(matched), tenant) == (LENGTH // 2, "w")
        assert all(matched[at] == key[at] for at in range(0, LENGTH // 2, 1000))

    with_small_stack(work)
