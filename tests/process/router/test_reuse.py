"""The router knows what caches of any size could have held of its prompts, and says what limits its fleet."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.support.engine import MODEL, Engine, whole

from .running import Router, ask_by_command

BLOCK = 16
FLAGS = ("--no-events", "--tokenizer", "none")


def prompt(conversation: int, turns: int) -> dict[str, Any]:
    """The prompt of a turn: a block that all have, then two for each turn, and one token more."""
    tokens = [*range(BLOCK), *(1000 * conversation + number for number in range(2 * BLOCK * turns)), 7]
    return {"model": MODEL, "prompt": tokens}


def plan(router: Router, *more: str) -> subprocess.CompletedProcess[str]:
    return ask_by_command(router, "plan", *more, option="--router")


def test_the_possible_hits_are_those_of_any_cache(engine: Engine) -> None:
    engine.behaviour = whole(prompt=33, cached=16)
    engine.answers["/metrics"] = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="4"} 1\n'
    with Router(engine, flags=FLAGS) as router:
        assert json.loads(router.get("/reuse")[1])["unlimited"] is None
        assert "has ended yet" in plan(router, "--watch", "0").stdout
        for turn in (1, 2, 3):
            for conversation in (1, 2):
                assert router.ask(prompt(conversation, turn), path="/v1/completions").status == 200
        found = json.loads(router.get("/reuse")[1])
        # Blocks of the prompts: 3, 3, 5, 5, 7, 7. What is new: 3, 2, and two for each turn.
        tokens = 2 * (3 + 5 + 7) * BLOCK + 6
        assert (found["requests"], found["prompt_tokens"], found["sample"]) == (6, tokens, 1)
        assert found["unlimited"] == pytest.approx((1 + 3 + 3 + 5 + 5) * BLOCK / tokens, abs=1e-4)
        # The engine's cache has room for four blocks: less than two conversations need.
        assert found["fleet_tokens"] == 4 * BLOCK
        assert found["fleet"] < found["unlimited"]
        assert found["hit_rate"] == pytest.approx(6 * 16 / tokens, abs=1e-4)
        rates = [row["hit_rate"] for row in found["curve"]]
        assert rates == sorted(rates)
        assert rates[-1] == found["unlimited"]
        shown = router.metric("kvatlas_router_possible_hit_rate", cache="unlimited")
        assert shown == pytest.approx(found["unlimited"], abs=1e-4)
        possible = json.loads(router.get("/router")[1])["possible_hit_rate"]
        assert possible["unlimited"] == pytest.approx(found["unlimited"], abs=1e-4)


def test_a_plan_of_a_running_router(engine: Engine, other: Engine, tmp_path: Path) -> None:
    with Router(engine, other, flags=FLAGS) as router:
        router.get("/decisions")  # from now on it keeps terms
        for _ in range(3):
            assert router.ask(prompt(1, 40), path="/v1/completions").status == 200
        done = plan(router, "--watch", "0", "--json", str(tmp_path / "plan.json"))
        assert done.returncode == 0, done.stderr
        said = " ".join(done.stdout.split())
        for word in ("3 requests", "A cache without limit could have found", "decisions expected", "limits this fleet"):
            assert word in said, said
        data = json.loads((tmp_path / "plan.json").read_text())
        assert data["hit_rate_without_limit"] == pytest.approx(2 / 3, abs=0.01)
        assert set(data["limit"]) == {"largest", "room", "cache", "compute"}


def test_what_does_not_go_together_is_refused(engine: Engine) -> None:
    with Router(engine, flags=FLAGS) as router:
        done = plan(router, "--engines", "4")
        assert (done.returncode, "leave out --engines" in done.stderr) == (2, True)
        port = router.port
    done = plan(router)
    assert done.returncode == 1
    assert str(port) in done.stderr
    assert "start `kvatlas router` there" in done.stderr
