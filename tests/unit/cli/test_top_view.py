"""The screen of `kvatlas top`: its columns of models, and the order of engines."""

import io
from typing import Any

import pytest
from rich.console import Console

from kvatlas.cli.top_view import Look, View

COUNTS = ("answers", "faults", "prompt_tokens", "cached_tokens", "output_tokens")
ROUTER = {"policy": "kvatlas", "in_flight": 0, "requests": 2, "queued": 0, "retries": 0}


def engine(name: str, models: list[str] | None) -> dict[str, Any]:
    made: dict[str, Any] = {"name": name, "standing": "up", **dict.fromkeys(COUNTS, 0)}
    return made if models is None else made | {"models": models}


def decision(worker: str, model: str | None) -> dict[str, Any]:
    return {"at": 0, "worker": worker, "model": model, "tokens": 5, "cached_tokens": 0, "why": "cost", "decision_us": 9}


def lines(engines: list[dict[str, Any]], decisions: list[dict[str, Any]], width: int = 200) -> list[str]:
    """Lines of the screen."""
    state = ROUTER | {"expected_cached_tokens": 0, "reported_cached_tokens": 0}
    console = Console(width=width, record=True, file=io.StringIO())
    look = Look("http://r", 0.0, state, engines, decisions)
    console.print(View(len(decisions)).show(look, console))
    return console.export_text().splitlines()


def test_engines_and_decisions_have_their_model() -> None:
    shown = lines([engine("a", ["llama"]), engine("b", ["qwen", "qwen-lora", "x"])], [decision("a", "llama")])
    heads = [line.split() for line in shown if line.split()[:1] in (["engine"], ["time"])]
    assert [head[:3] for head in heads] == [["engine", "model", "stream"], ["time", "engine", "model"]]
    assert any(line.split()[:3] == ["a", "llama", "up"] for line in shown)
    assert any("qwen, qwen-lora +1" in line for line in shown)


@pytest.mark.parametrize("models", [None, []])
def test_without_models_there_is_no_column(models: list[str] | None) -> None:
    assert not any("model" in line for line in lines([engine("a", models)], [decision("a", None)]))


def test_a_model_that_all_share_gives_way_first() -> None:
    one, several = (
        "\n".join(lines([engine("a", ["llama-large"]), engine("b", [other])], [], width=75))
        for other in ("llama-large", "qwen")
    )
    assert "model" not in one
    assert "hits" in one
    assert "llama-large" in several


def test_long_names_of_models_are_cut() -> None:
    shown = "\n".join(lines([engine("a", ["meta-llama/" + "x" * 60])], []))
    assert "meta-llama/" + "x" * 16 + "…" in shown


def test_what_needs_a_look_comes_first() -> None:
    about = {"reason": "a reason", "advice": "advice", "runbook": "http://r", "since": 0}
    slow, down = (
        engine(name, None) | {"condition": {"name": name, "severity": severity, **about}}
        for name, severity in (("slow", 2), ("down", 9))
    )
    draining = engine("drained", None) | {"standing": "draining"}
    shown = lines([engine("a", None), slow, draining, down], [])
    table = [
        line.split()[0] for line in shown if line.split()[:1] and line.split()[0] in ("a", "slow", "drained", "down")
    ]
    assert table == ["down", "slow", "drained", "a"]


def test_costs_of_loads_and_pulls_are_shown_with_pairs_that_are_out_first() -> None:
    def cost(kind: str, source: str | None, out: float) -> dict[str, Any]:
        place = None if source is None else {"worker": source, "rank": 1}
        return {"kind": kind, "source": place, "floor": 0.025, "seconds_per_token": 4e-6, "samples": 7, "out": out}

    ranks = [{"rank": 0, "transfers": [cost("host", None, 0.0), cost("pull", "b", 272.0)]}, {"rank": 1}]
    shown = lines([engine("a", None) | {"ranks": ranks}, engine("b", None)], [])
    start = next(at for at, line in enumerate(shown) if "loads or pulls from" in line)
    pull, host = (" ".join(line.split()) for line in shown[start + 1 : start + 3])
    assert pull.startswith("a b rank 1 25.0 ms 4.0 ms 7 out for ")
    assert host == "a its host memory 25.0 ms 4.0 ms 7"
    assert not any("loads or pulls" in line for line in lines([engine("b", None)], []))
