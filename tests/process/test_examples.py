"""Every example runs as it is, and says what its page promises."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

# What each must print, as a pattern for all of it.
PRINTED = {
    "own_policy.py": r"(\S+) had 0 of 640 tokens cached\n(\1 had 624 of 640 tokens cached\n){2}",
    "index_in_gateway.py": r"next turn: engine-b\nafter its eviction, blocks held: 0\n",
    "serve_and_query.py": r"\S+ has 62 of 62 blocks\n(\S+: active\n){2}",
    "router.py": r"second turn: 640 of 740 tokens were cached\nsent to \S+, which was expected to have 640 tokens\n",
    "all_parts.py": r"the other router finds 1264 of 1280 tokens cached\n"
    r"without its service, a router answers by load: True\nthe other one finds 1264 tokens\n",
    "paged_attention.py": r"first prompt: 0 of 13 tokens cached, 4 blocks\nsecond prompt: 8 of 10 tokens cached\n"
    r"third prompt: 16 of 16 tokens cached\na prompt of 3 pages has to wait: there is room for 2\n"
    r"every block is free again: True\n",
}


def test_every_example_is_run_and_named() -> None:
    files = {path.name for path in EXAMPLES.glob("*.py")}
    assert files == set(PRINTED)
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert all(f"({name})" in page for name in files)


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_runs(name: str) -> None:
    variables = os.environ | {"PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, EXAMPLES / name], capture_output=True, text=True, timeout=120, env=variables, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(PRINTED[name], done.stdout), done.stdout
