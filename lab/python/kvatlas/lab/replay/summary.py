"""Sentences about the results of a replay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kvatlas._text import count, counted, duration, percent, seconds
from kvatlas.lab.replay.results import MOST_SLOWDOWN, PolicyResult, ReplayResult
from kvatlas.sim.transfers import Transfer


def about_trace(result: ReplayResult) -> list[str]:
    """Describe the replayed trace, in a few lines."""
    stats = result.statistics
    rate = stats.requests / stats.duration if stats.duration else 0.0
    lengths = stats.input_quantiles
    lines = [
        (
            f"{result.trace}: {count(stats.requests)} requests in {duration(stats.duration)} ({rate:.1f} a second), "
            f"{count(stats.input_tokens)} prompt tokens, {count(stats.output_tokens)} generated, "
            f"{count(stats.distinct_blocks)} distinct blocks of {stats.block}."
        ),
        (
            f"Prompt length: median {count(lengths['p50'])} tokens, 10 % below {count(lengths['p10'])}, "
            f"10 % above {count(lengths['p90'])}, 1 % above {count(lengths['p99'])}, longest {count(lengths['max'])}."
        ),
    ]
    made = result.generated
    if "bursts" in made:
        lines.append(f"Generated: {count(made['bursts'])} bursts of siblings, and single requests.")
    elif "sub_agents" in made:
        lines.append(
            f"Generated: {count(made['sessions'])} sessions of agents and {count(made['sub_agents'])} sub-agents, "
            f"{made['turns_per_session']:.1f} requests to a session."
        )
    elif "documents" in made:
        lines.append(f"Generated: questions on {count(made['documents'])} documents.")
    elif "conversations" in made:
        lines.append(f"Generated: {count(made['conversations'])} conversations of clients that wait for their answers.")
    elif made:
        lines.append(
            f"Generated: {count(made['sessions'])} sessions of {made['turns_per_session']:.1f} requests on average; "
            f"{percent(made['agent_requests'])} of the requests come from agents, the others from chats."
        )
    if result.skipped:
        lines.append(f"{count(result.skipped)} malformed lines were left out.")
    lines.append(
        f"{percent(stats.seen_before)} of the prompt tokens repeat the beginning of an earlier prompt: "
        "no cache can provide more."
    )
    return lines


def about_fleet(result: ReplayResult) -> str:
    """Describe the engines of a replay, in one line."""
    config, engine, steps = result.config, result.config.fleet.engine, result.config.steps
    speed = f", the trace's clock {config.speedup:g} times as fast" if config.speedup != 1 else ""
    return (
        f"{config.fleet.engines} simulated engines, each with room for {count(engine.cache_tokens)} tokens of KV in "
        f"blocks of {engine.block_size}. A step of at most {engine.chunk or 'any number of'} tokens takes "
        f"{1e3 * steps.base:g} ms, {1e6 * steps.prefill:g} us more for each prompt token, {1e6 * steps.running:g} us "
        f"for each request and {1e9 * steps.context:g} ns for each token of KV read{speed}.{_about_tiers(result)}"
    )


def _about_tiers(result: ReplayResult) -> str:
    """Describe the tiers behind the engines' caches."""
    tiers = result.config.tiers
    told = (
        [f"{count(tiers.host_tokens)} tokens of host memory each ({_about(tiers.host)})"] if tiers.host_tokens else []
    )
    if tiers.pool_tokens != 0:
        size = "without a limit" if tiers.pool_tokens is None else f"of {count(tiers.pool_tokens)} tokens"
        told.append(f"a pool {size} ({_about(tiers.pool)})")
    if tiers.pulls:
        told.append(f"pulls from each other's host memory ({_about(tiers.pull)})")
    return f" Behind the caches: {', '.join(told)}; in chunks of {counted(tiers.chunk, 'block')}." if told else ""


def _about(transfer: Transfer) -> str:
    return f"{1e3 * transfer.floor:g} ms and {1e6 * transfer.per_token:g} us a token"


LEGEND = (
    "cache hits: share of the prompt tokens that the chosen engine already held. busy: share of the time in steps with "
    "prompts in them; peak: that share for the busiest engine / the mean. TTFT: time to first token, from arrival at "
    "the router. between: time between two tokens of a request. good: requests whose first token came within 4 s and "
    "whose mean time between tokens was at most 100 ms."
)


WAITING = (
    "Parts of the mean TTFT. in the queue: of the engine, for its turn; for room: in that queue, while the first "
    "request of it found too few free blocks or too many others running; loading: while blocks came from host memory, "
    "the pool or a peer; computing: from the start of the prompt to the first token, without that."
)


LOADING = (
    "Tokens loaded instead of computed; they count as cache hits. pulls: requests that asked a peer; failed: those "
    "without an answer; short: tokens that the peer had when the request was sent, and no longer when it "
    "was asked; dropped: chunks for which host memory had no slot."
)


def about_trouble(result: ReplayResult) -> list[str]:
    """Describe the cost of misbehaving engines under each policy; empty if none misbehave."""
    scenario = result.config.scenario
    if not (scenario.troubles or scenario.limits or scenario.late):
        return []
    kinds = Counter(trouble.kind for trouble in scenario.troubles)
    told = [f"{kind} {number} times" for kind, number in kinds.items()]
    told += [f"{count(len(scenario.limits))} engines with a limit that they do not tell"] if scenario.limits else []
    told += [f"{percent(scenario.late)} of the requests late"] if scenario.late else []
    lines = [f"Trouble: {', '.join(told)}."]
    lines += [
        f"With {p.policy}, {count(p.retried)} requests were sent again and {count(p.refused)} refused; the longest "
        f"wait in the router was {seconds(p.longest_wait)}."
        for p in result.policies
    ]
    return lines


def conclusion(result: ReplayResult) -> list[str]:
    """Compare the policies, in sentences; empty if there is only one."""
    done = [p for p in result.policies if not p.partial]
    ours = next((p for p in done if p.policy == "kvatlas"), None)
    others = [p for p in done if p is not ours]
    if ours is None or not others:
        return []
    refused = max(p.refused for p in done)
    why = "too large for an engine's cache" + (
        ", or failed at three engines" if result.config.scenario.troubles else ""
    )
    large = [f"{count(refused)} requests were {why} and were refused."] if refused else []
    if not ours.first_tokens:
        return large
    lines = [
        (
            f"With kvatlas, {percent(ours.hit_rate)} of all prompt tokens were found cached. "
            f"One cache as large as all {result.config.fleet.engines} engines' together would find "
            f"{percent(result.shared_rate)}, one without any limit {percent(result.bound_rate)}."
        )
    ]
    hits = max(others, key=lambda p: p.hit_rate)
    fastest = min(others, key=lambda p: p.ttft.mean)
    lines.append(_compare_hits(ours, hits) + " " + _compare_ttft(ours, fastest))
    busy = [p for p in done if p.utilisation >= 0.9]
    if busy:
        lines.append(
            f"With {_names(busy)}, prefill kept the engines busy more than 90 % of the time. "
            "So close to the limit, waiting times mostly reflect the length of the trace."
        )
    return lines + large


def _compare_hits(ours: PolicyResult, other: PolicyResult) -> str:
    saved = other.prefill_tokens - ours.prefill_tokens
    if abs(saved) <= 0.001 * other.prefill_tokens:
        return f"{other.policy} finds as much: {percent(other.hit_rate)}."
    if saved < 0:
        return f"{other.policy} finds more: {percent(other.hit_rate)}, and computes {count(-saved)} tokens fewer."
    return (
        f"The most that any other policy finds is {percent(other.hit_rate)} ({other.policy}): "
        f"kvatlas computes {count(saved)} tokens fewer, {percent(saved / other.prefill_tokens)} of the work."
    )


def _compare_ttft(kvatlas: PolicyResult, other: PolicyResult) -> str:
    ours, theirs = kvatlas.ttft.mean, other.ttft.mean
    if abs(ours - theirs) <= 0.01 * theirs:
        return f"The first token comes after {seconds(ours)} on average, as it does with {other.policy}."
    if ours > theirs:
        return (
            f"The first token comes sooner with {other.policy}: "
            f"after {seconds(theirs)} on average, not {seconds(ours)}."
        )
    return (
        f"The first token comes after {seconds(ours)} on average; the next best, {other.policy}, "
        f"needs {seconds(theirs)}, {theirs / ours:.1f} times as long."
    )


def about_sessions(result: ReplayResult) -> list[str]:
    """Describe the slowdown of sessions, in a few lines; empty if the trace has no sessions."""
    slow = [(p.policy, p.slowdown) for p in result.policies if p.slowdown is not None]
    if not slow:
        return []
    how = "start when those they wait for have ended" if result.loop == "closed" else "come at the trace's times"
    return [
        f"Requests {how} ({result.loop} loop). Session slowdown (time in requests / that on an idle engine that keeps "
        "the session's context): "
        + "; ".join(
            f"{name} {s.mean:.2f} on average, {s.p95:.2f} at p95, {s.within:.0f} sessions/h within {MOST_SLOWDOWN:g}"
            for name, s in slow
        )
        + "."
    ]


def about_missed(result: ReplayResult) -> list[str]:
    """Describe the reasons why tokens were computed, in a few lines; empty if they were not counted."""
    missed = [(p.policy, p.missed) for p in result.policies if p.missed is not None]
    if not missed:
        return []
    every = "; ".join(
        f"{name} {percent(m.never)} new, {percent(m.evicted)} evicted everywhere, "
        f"{percent(m.on_the_way)} on the way, "
        f"{percent(m.elsewhere)} held when the request came, gone when it began or at another engine"
        for name, m in missed
    )
    return [f"Prompt tokens that were not cached: {every}."]


def about_check(result: ReplayResult) -> str:
    """Describe the comparison of sampled answers with the oracles, in one line."""
    if not result.config.check:
        return "No answer was checked (--check 0)."
    checked = sum(p.agreement.checked for p in result.policies)
    followed = max((p.agreement.reference_workers for p in result.policies), default=0)
    wrong = result.disagreements
    whom = "the reference" if followed == result.config.fleet.engines else f"the reference for {followed} engines"
    verdict = "all agree" if not wrong else f"{count(wrong)} DISAGREE"
    return (
        f"{count(checked)} sampled queries were checked against {whom} and against what every engine held: {verdict}."
    )


def about_index(result: ReplayResult) -> str:
    """Describe the measurement of the index, in one line."""
    clock = max((p.index.clock_cost_ns for p in result.policies), default=0.0)
    return (
        "Each call from Python is timed on its own, between simulation steps that empty the processor's caches; "
        f"reading the clock ({clock:.0f} ns) is included. Event: a store, or the removals of one step. "
        "store, remove: ns a block. held: blocks on all engines; bytes: the index's memory for each of them."
    )


def _names(policies: Sequence[PolicyResult]) -> str:
    names = [p.policy for p in policies]
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]
