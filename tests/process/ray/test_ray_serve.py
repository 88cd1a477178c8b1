"""The example of a request router for Ray Serve, run with the real Ray."""

import os
import re
import subprocess
from pathlib import Path

import pytest

import kvatlas

APP = Path(__file__).parents[3] / "examples" / "ray_serve" / "app.py"
SAYS = r"(turn 1: 0 of 566 tokens were cached\n){3}(turn 2: 560 of 718 .*\n){3}(turn 3: 720 of 870 .*\n){3}"

pytestmark = pytest.mark.slow


def test_conversations_stay_with_the_replica_that_has_their_beginning(tmp_path: Path) -> None:
    python = os.environ.get("RAY_PYTHON")
    if python is None:
        pytest.skip("no Python with Ray: set RAY_PYTHON to one that has 'ray[serve]==2.60.0' and what kvatlas needs")
    variables = {
        **os.environ,
        "PYTHONPATH": str(Path(kvatlas.__file__).parents[1]),
        "PYTHONWARNINGS": "ignore",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    done = subprocess.run(
        [python, str(APP)], capture_output=True, text=True, timeout=600, env=variables, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    # What replicas log comes between.
    said = "".join(line for line in done.stdout.splitlines(keepends=True) if re.match(r"turn \d|replicas of", line))
    assert re.fullmatch(SAYS + r"replicas of each conversation: 1 1 1 of 3\n", said), done.stdout[-3_000:]
