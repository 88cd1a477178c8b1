"""Tests of the report that people read at the end."""

import io
import json
from dataclasses import replace

from rich.console import Console

from kvatlas._text import percent, seconds
from kvatlas.lab.replay import ReplayConfig, ReplayResult, replay, summary
from kvatlas.lab.replay.check import Disagreement
from kvatlas.lab.replay.report import print_report, routing_rows, wait_rows
from kvatlas.lab.replay.results import as_json
from kvatlas.sim import EngineConfig, FleetConfig, Trace, TraceRequest


def printed(result: ReplayResult, width: int = 110) -> str:
    out = io.StringIO()
    print_report(result, Console(file=out, width=width))
    return out.getvalue()


def flat(text: str) -> str:
    return " ".join(text.split())


def test_the_report_says_everything(result: ReplayResult) -> None:
    text = flat(printed(result))
    for policy in result.policies:
        assert policy.policy in text
        assert percent(policy.hit_rate) in text
        assert seconds(policy.ttft.p99) in text
    assert percent(result.bound_rate) in text
    assert "one infinite cache" in text
    assert "Generated: " in text
    assert "all agree" in text
    assert "With kvatlas," in text
    assert "Interrupted" not in text


def test_the_tables_fit_a_narrow_terminal(result: ReplayResult) -> None:
    assert all(len(line) <= 80 for line in printed(result, width=80).splitlines())
    assert "prefix-hash" in printed(result, width=80)
    assert "…" not in printed(result, width=80)


def test_a_partial_report_says_so(result: ReplayResult) -> None:
    policies = [result.policies[0], replace(result.policies[1], partial=True)]
    text = flat(printed(replace(result, partial=True, policies=policies)))
    assert "Interrupted: this is what was done so far" in text
    assert "round-robin (partial)" in text
    assert "With kvatlas," not in text
    assert "Interrupted" in printed(replace(result, partial=True, policies=[]))


def test_disagreements_are_printed(result: ReplayResult) -> None:
    example = Disagreement("kvatlas", 17, "engine-3", "reference", 5, 4, 60)
    wrong = replace(result.policies[4].agreement, disagreements=1, examples=[example])
    policies = [*result.policies[:4], replace(result.policies[4], agreement=wrong)]
    text = flat(printed(replace(result, policies=policies)))
    assert "1 DISAGREE" in text
    assert "kvatlas, request 17 (60 blocks), engine-3: the reference says 5, the index says 4" in text


def test_what_was_not_counted_has_no_share() -> None:
    # All requests come at once, and no prompt fits: nothing was cached, no token came.
    fleet = FleetConfig(2, EngineConfig(block_size=512, blocks=2))
    trace = Trace([TraceRequest(0, 5_000, 1, tuple(range(10))) for _ in range(3)])
    done = replay(trace, ReplayConfig(fleet=fleet, policies=("round-robin", "kvatlas"), check=0.0))
    assert (done.policies[0].refused, done.policies[0].prompt_tokens) == (3, 0)
    for row in [*routing_rows(done)[:2], *wait_rows(done)]:
        assert not [cell for cell in row[1:] if cell not in ("—", "0 %", "0.0 %")], row
    assert routing_rows(done)[0][1] == "—"
    assert summary.conclusion(done) == ["3 requests were too large for an engine's cache and were refused."]


def test_requests_that_come_at_once_and_generate_one_token() -> None:
    fleet = FleetConfig(1, EngineConfig(block_size=512, blocks=20))
    done = replay(
        Trace([TraceRequest(0, 512, 1, (1,))]), ReplayConfig(fleet=fleet, policies=("round-robin",), check=0.0)
    )
    _, cached, busy, peak, *_, between, last, good = routing_rows(done)[0]
    assert (cached, busy, peak, between, last, good) == ("0.0 %", "—", "1.00", "—", "—", "100.0 %")


def test_the_conclusion_does_not_flatter(result: ReplayResult) -> None:
    ours = result.policies[4]
    worse = replace(ours, hit_rate=0.01, prefill_tokens=10**9, ttft=replace(ours.ttft, mean=1e6))
    text = " ".join(summary.conclusion(replace(result, policies=[*result.policies[:4], worse])))
    assert "finds more" in text
    assert "comes sooner with" in text
    assert "the index saves" not in text
    equal = replace(result.policies[3], policy="kvatlas")
    text = " ".join(summary.conclusion(replace(result, policies=[result.policies[3], equal])))
    assert "prefix-hash finds as much" in text
    assert "as it does with prefix-hash" in text


def test_overload_and_refusals_are_told(result: ReplayResult) -> None:
    busy = replace(result.policies[0], utilisation=0.99, refused=3)
    text = " ".join(summary.conclusion(replace(result, policies=[busy, *result.policies[1:]])))
    assert "With random, prefill kept the engines busy more than 90 %" in text
    assert "3 requests were too large" in text


def test_nothing_is_concluded_from_one_policy(result: ReplayResult) -> None:
    assert summary.conclusion(replace(result, policies=result.policies[4:])) == []
    assert summary.conclusion(replace(result, policies=result.policies[:4])) == []


def test_json_has_everything_but_single_lookups(result: ReplayResult) -> None:
    data = json.loads(json.dumps(as_json(result), allow_nan=False))
    assert [p["policy"] for p in data["policies"]] == [p.policy for p in result.policies]
    assert data["disagreements"] == 0
    assert data["partial"] is False
    assert data["config"]["fleet"]["engines"] == 4
    assert "find_ns" not in data["policies"][0]
    assert data["policies"][0]["index"]["lookups"] == 240
