"""Routers in turns in front of the same simulated engines, in real time, under a recorded trace.

    python -m benchmarks.live --trace conversation_trace.jsonl --minutes 5

Every router gets the same requests at the same moments, with the engines' caches empty at the beginning; requests that
wait for others in the trace (agents) come when these have ended, with the name of their session. What a client
sees is measured: the time from the moment a request was due to the first piece of its answer, and to the last one; the
tokens that engines report as cached. Results are added to the file at --json, so that rounds can be run one by one.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import click
from benchmarks.router.fleet import Engines
from benchmarks.router.routers import IN_LITELLM, Router, Setup, kvatlas, smg, vllm_router

from kvatlas.sim.agents import AgentConfig, generate_agents
from kvatlas.sim.trace import TraceRequest, read_trace

from .engines import LiveEngines
from .load import replay

ROOT = Path(__file__).resolve().parents[2]
SETUPS = (
    Setup("kvatlas, tokenizer here", kvatlas("kvatlas")),
    Setup("kvatlas, engines tokenize", kvatlas("kvatlas", "--tokenizer", "engine")),
    Setup("kvatlas, no events", kvatlas("kvatlas", "--no-events")),
    Setup("vllm-router kv_aware", vllm_router("kv_aware"), peer="vllm-router"),
    Setup("vllm-router cache_aware", vllm_router("cache_aware"), peer="vllm-router"),
    Setup("vllm-router consistent_hash", vllm_router("consistent_hash"), peer="vllm-router"),
    Setup("vllm-router round_robin", vllm_router("round_robin"), peer="vllm-router"),
    Setup("smg cache_aware", smg("cache_aware"), peer="smg"),
    Setup("smg prefix_hash", smg("prefix_hash"), peer="smg"),
    *IN_LITELLM,
)


# Agents with prompts of a few thousand tokens, which even a proxy in Python keeps up with.
SHORT = AgentConfig(
    requests=160,
    session_rate=600,
    kinds=6,
    tools=2_048,
    first=1_024,
    grown=300,
    output=48,
    turns=14,
    longest=16_000,
    longest_pause=20,
    agent_turns=5,
)


def quantile(values: Sequence[float], q: float) -> float:
    """A quantile; not a number if there are no values."""
    return sorted(values)[min(int(q * len(values)), len(values) - 1)] if values else float("nan")


def summary(turns: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Figures of one router over its rounds: the median of each."""

    def middle(of: Callable[[dict[str, Any]], float]) -> float:
        return statistics.median(of(turn) for turn in turns)

    return {
        "first token, mean s": middle(lambda turn: statistics.fmean(turn["first_token"] or [float("nan")])),
        "p50 s": middle(lambda turn: quantile(turn["first_token"], 0.5)),
        "p99 s": middle(lambda turn: quantile(turn["first_token"], 0.99)),
        "whole, mean s": middle(lambda turn: statistics.fmean(turn["whole"] or [float("nan")])),
        "hits %": middle(lambda turn: 100 * turn["cached_tokens"] / max(turn["prompt_tokens"], 1)),
        "router CPU s": middle(lambda turn: turn["cpu_seconds"]),
        "failed": middle(lambda turn: sum(turn["failures"].values())),
    }


def table(results: dict[str, list[dict[str, Any]]], missing: dict[str, str]) -> str:
    """The figures in Markdown, the least time to the first token first, as ratios to the best released router too."""
    rows = {name: summary(turns) for name, turns in results.items() if turns}
    lead = "first token, mean s"
    others = [row[lead] for name, row in rows.items() if not name.startswith(("kvatlas", "LiteLLM"))]
    best = min(others) if others else float("nan")
    names = list(next(iter(rows.values()))) if rows else []
    lines = ["| router | " + " | ".join(names) + " | to the best other |", "|---|" + "---|" * (len(names) + 1)]
    for name, row in sorted(rows.items(), key=lambda pair: pair[1][lead]):
        figures = " | ".join(f"{row[each]:.2f}" if "s" in each.split()[-1] else f"{row[each]:.1f}" for each in names)
        lines.append(f"| {name} | {figures} | {row[lead] / best:.2f} |")
    own = next((row["hits %"] for name, row in rows.items() if name == SETUPS[0].name), None)
    if own is not None:
        inside = [(name, row["hits %"] / own) for name, row in rows.items() if name.startswith("LiteLLM")]
        lines += [f"\n{name}: {share:.3f} of the hits of {SETUPS[0].name}" for name, share in inside]
    lines += [f"\n{name}: {why}" for name, why in missing.items()]
    return "\n".join(lines)


def turn(
    setup: Setup,
    engines: LiveEngines,
    requests: Sequence[TraceRequest],
    block: int,
    speed: float,
    peers: Path,
    logs: Path,
) -> dict[str, Any]:
    """One router under the whole trace."""
    engines.empty()
    # The routers' module sees engines by their addresses alone.
    with Router(setup, cast("Engines", engines), peers, logs, engines.model) as router:
        time.sleep(3.0)  # some routers look for their engines' events in the background
        engines.empty()  # the request that showed that the router answers
        before = router.cpu_seconds()
        headers = dict([setup.header.split(": ", 1)]) if setup.header else {}
        seen = asyncio.run(replay(f"http://127.0.0.1:{router.port}", requests, speed, headers, block))
        return {**seen.as_dict(), "cpu_seconds": router.cpu_seconds() - before}


@click.command(context_settings={"show_default": True}, help=(__doc__ or "").partition("\n\n")[0])
@click.option(
    "--trace", type=click.Path(exists=True, dir_okay=False), help="A trace of Mooncake's format; short agents if none."
)
@click.option("--minutes", default=5.0, help="Length of the part of the trace that is sent, from its beginning.")
@click.option("--speed", default=1.0, help="Speed of the engines' clock, and of the trace.")
@click.option("--engines", "count", default=8, help="Simulated engines.")
@click.option("--cache-tokens", default=393_216, help="KV cache of an engine, in tokens.")
@click.option("--rounds", default=1, help="Turns that each router has.")
@click.option("--router", "only", multiple=True, help="Routers whose name contains this; all if not given.")
@click.option("--peers", type=click.Path(path_type=Path), default=ROOT / "target" / "router-peers")
@click.option("--json", "file", type=click.Path(path_type=Path), default=ROOT / "target" / "live-bench.json")
def main(
    trace: str | None,
    minutes: float,
    speed: float,
    count: int,
    cache_tokens: int,
    rounds: int,
    only: tuple[str, ...],
    peers: Path,
    file: Path,
) -> None:
    """Run the turns, and print the table."""
    read = read_trace(trace).check_timed() if trace else generate_agents(SHORT)
    begin = read.requests[0].timestamp
    requests = [each for each in read.requests if each.timestamp - begin < minutes * 60_000]
    results: dict[str, list[dict[str, Any]]] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    missing: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="kvatlas-live-") as folder:
        logs = Path(folder)
        with LiveEngines(count, cache_tokens, speed, logs) as engines:
            for number in range(rounds):
                for setup in SETUPS:
                    if only and not any(name in setup.name for name in only):
                        continue
                    if why := setup.missing(peers):
                        missing[setup.name] = why
                        continue
                    click.echo(f"round {number + 1}, {setup.name}: {len(requests)} requests", err=True)
                    try:
                        results.setdefault(setup.name, []).append(
                            turn(setup, engines, requests, read.block, speed, peers, logs)
                        )
                    except RuntimeError as error:
                        missing[setup.name] = str(error)
                        continue
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_text(json.dumps(results), encoding="utf-8")
                    click.echo(json.dumps(summary(results[setup.name])), err=True)
    click.echo(table(results, missing))


if __name__ == "__main__":
    main()
