"""The panels of each dashboard. What a panel shows is described by the help of its metrics, as `/metrics` has it."""

from __future__ import annotations

import re
from typing import NamedTuple

# A metric of kvatlas or of its process, with what the samples of a histogram add to its name.
_METRIC = re.compile(r"\b(?:kvatlas|process)_\w+")


class Panel(NamedTuple):
    """A title, a unit of Grafana's, and queries with their legends. `$of` stands for the chosen jobs and instances."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    kind: str = "timeseries"

    def metrics(self) -> list[str]:
        """The names of its metrics as the reference pages have them, in the order of the queries."""
        names = (
            re.sub("_(bucket|count|sum)$", "", name) for query, _ in self.queries for name in _METRIC.findall(query)
        )
        return list(dict.fromkeys(names))


def _sum(title: str, metric: str, unit: str = "short", kind: str = "timeseries", by: str = "instance") -> Panel:
    return Panel(title, unit, ((f"sum by ({by}) ({metric}{{$of}})", "{{" + by + "}}"),), kind)


def _rate(title: str, metric: str, by: str = "instance", unit: str = "reqps", only: str = "") -> Panel:
    chosen = f"$of, {only}" if only else "$of"
    legend = " ".join("{{" + label.strip() + "}}" for label in by.split(","))
    query = f"sum by ({by}) (rate({metric}{{{chosen}}}[$__rate_interval]))"
    if "," in by:
        query += " > 0"  # Most pairs of labels never occur, and would fill the legend.
    return Panel(title, unit, ((query, legend),))


def _quantile_by(title: str, metric: str, by: str, quantile: float = 0.99) -> Panel:
    query = f"histogram_quantile({quantile}, sum by (le, {by}) (rate({metric}_bucket{{$of}}[$__rate_interval])))"
    return Panel(title, "s", ((query, "{{" + by + "}}"),))


def _quantiles(title: str, metric: str) -> Panel:
    queries = (
        (
            f"histogram_quantile({quantile}, sum by (le) (rate({metric}_bucket{{$of}}[$__rate_interval])))",
            f"p{round(quantile * 100)}",
        )
        for quantile in (0.5, 0.9, 0.99)
    )
    return Panel(title, "s", tuple(queries))


def _state(title: str, metric: str, label: str) -> Panel:
    return Panel(
        title, "short", ((f"sum by ({label}) (max by (engine, {label}) ({metric}{{$of}}))", "{{" + label + "}}"),)
    )


_HITS = (
    "sum by ({by}) (rate(kvatlas_router_engine_cached_tokens_total{{$of}}[$__rate_interval]))"
    " / sum by ({by}) (rate(kvatlas_router_engine_prompt_tokens_total{{$of}}[$__rate_interval]))"
)

BOARDS: dict[str, tuple[Panel, ...]] = {
    "fleet": (
        _sum("Ready", "kvatlas_ready", kind="stat"),
        _sum("Engines", "kvatlas_engines", by="state"),
        _rate("Requests", "kvatlas_router_requests_total", "status"),
        _rate("Requests that the router refused", "kvatlas_router_refused_requests_total", "reason"),
        _rate("Requests by model", "kvatlas_router_requests_total", "model"),
        _rate("Requests that failed, by model", "kvatlas_router_requests_total", "model", only='status="5xx"'),
        _quantiles("Time to the first token", "kvatlas_router_first_token_seconds"),
        _quantile_by("Time to the first token by model, p99", "kvatlas_router_first_token_seconds", "model"),
        _quantiles("Time of a request", "kvatlas_router_request_duration_seconds"),
        _quantile_by("Time of a request by model, p99", "kvatlas_router_request_duration_seconds", "model"),
        Panel(
            "Requests that wait",
            "short",
            (
                ("sum(kvatlas_router_queue{$of})", "for room"),
                ("sum(kvatlas_router_queue_for_engine{$of})", "for an engine"),
            ),
        ),
        _rate("Requests tried again", "kvatlas_router_retries_total", "reason"),
        Panel(
            "Share of prompt tokens that were cached", "percentunit", ((_HITS.format(by="instance"), "{{instance}}"),)
        ),
        Panel(
            "Share of prompt tokens that were cached, by model",
            "percentunit",
            ((_HITS.format(by="model"), "{{model}}"),),
        ),
        _sum("Resident memory", "process_resident_memory_bytes", "bytes"),
        _rate("Processor", "process_cpu_seconds_total", unit="short"),
    ),
    "engines": (
        _state("Engines by standing", "kvatlas_router_engine_standing", "standing"),
        _state("Engines by condition", "kvatlas_router_engine_condition", "condition"),
        _sum("Requests in flight", "kvatlas_router_engine_requests_in_flight", by="engine"),
        _sum("Requests without a part of their answer", "kvatlas_router_engine_requests_waiting", by="engine"),
        _quantile_by("Time to the first token, p99", "kvatlas_router_first_token_seconds", "engine"),
        _rate("Answers", "kvatlas_router_engine_answers_total", "engine, status"),
        _rate("Faults", "kvatlas_router_engine_faults_total", "engine, reason"),
        _rate("Generated tokens", "kvatlas_router_engine_output_tokens_total", "engine", "short"),
        Panel("Share of prompt tokens that were cached", "percentunit", ((_HITS.format(by="engine"), "{{engine}}"),)),
        _rate("Answers that broke off", "kvatlas_router_engine_broken_answers_total", "engine"),
        _rate("Left out for failures", "kvatlas_router_engine_left_alone_total", "engine", "short"),
    ),
    "index": (
        _sum("Streams", "kvatlas_streams", by="state"),
        Panel(
            "Streams that are not in order",
            "short",
            (
                ("sum by (instance) (kvatlas_streams_untrusted{$of})", "{{instance}} untrusted"),
                ("sum by (instance) (kvatlas_streams_partial{$of})", "{{instance}} partial"),
                ("sum by (instance) (kvatlas_streams_unsettled{$of})", "{{instance}} unsettled"),
            ),
        ),
        _quantiles("Lag of events", "kvatlas_event_lag_seconds"),
        Panel("Lag of each stream", "s", (("max by (worker) (kvatlas_stream_lag_seconds{$of})", "{{worker}}"),)),
        _rate("Blocks stored", "kvatlas_stream_stored_blocks_total", "worker", "short"),
        _rate("Blocks removed", "kvatlas_stream_removed_blocks_total", "worker", "short"),
        _rate("Gaps", "kvatlas_stream_gaps_total", "worker", "short"),
        _rate("Batches lost for good", "kvatlas_stream_lost_batches_total", "worker", "short"),
        _sum("Blocks", "kvatlas_index_blocks", by="model"),
        _sum("Distinct blocks", "kvatlas_index_positions", by="model"),
        _sum("Memory of the index", "kvatlas_index_bytes", "bytes", by="model"),
        _sum("Buffers", "kvatlas_buffered_bytes", "bytes"),
        _rate("Limits reached", "kvatlas_limits_reached_total", "limit", "short"),
    ),
    "decisions": (
        _rate("Decisions", "kvatlas_router_decisions_total", "policy, reason"),
        _rate("Decisions by model", "kvatlas_router_decisions_total", "model"),
        _rate("Requests that were not placed", "kvatlas_router_decisions_refused_total", "reason"),
        _quantiles("Time of a decision", "kvatlas_router_decision_seconds"),
        _rate("Expected and found in the cache", "kvatlas_router_cached_tokens_off_count", "reason"),
        _rate(
            "Not as expected, by model",
            "kvatlas_router_cached_tokens_off_count",
            "model",
            only='reason!~"as_expected|evicted_meanwhile"',
        ),
        Panel(
            "Cached tokens",
            "short",
            (
                ("sum(rate(kvatlas_router_expected_cached_tokens_total{$of}[$__rate_interval]))", "expected"),
                ("sum(rate(kvatlas_router_reported_cached_tokens_total{$of}[$__rate_interval]))", "reported"),
            ),
        ),
        Panel(
            "Share that one cache could hold",
            "percentunit",
            (("max by (cache) (kvatlas_router_possible_hit_rate{$of})", "{{cache}}"),),
        ),
        _sum("Share of prompts that were not read", "kvatlas_router_prompts_unread_share", "percentunit"),
        _rate("Prompts without tokens", "kvatlas_router_prompts_without_tokens_total", "endpoint, reason"),
        _rate("Requests that waited", "kvatlas_router_decisions_waited_total"),
        _sum("Blocks on their way", "kvatlas_router_predicted_blocks"),
    ),
    "agents": (
        _sum("Known sessions", "kvatlas_router_known_sessions"),
        _sum("Sessions that stay with an engine", "kvatlas_router_sessions"),
        _rate("Prompts by what named their session", "kvatlas_router_session_prompts_total", "source"),
        _rate("Turns", "kvatlas_router_turns_total", "kind"),
        _sum("Sessions whose prompts begin differently", "kvatlas_router_changing_prompt_sessions"),
        _rate("Turns whose prompts begin differently", "kvatlas_router_changing_prompts_total"),
        _rate("Requests for what an engine keeps", "kvatlas_router_stored_answer_requests_total", "engine"),
        _sum("Answers whose engine is known", "kvatlas_router_stored_answers"),
        _rate("Prompts looked at", "kvatlas_router_prompts_looked_at_total", "endpoint"),
    ),
}
