"""Facts that a running router reports about its engines, for a check of the same engines."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from kvatlas.router.check.findings import EngineReport, Level
from kvatlas.router.config import RouterConfig
from kvatlas.service.config import Engine

_PAUSES = ("asleep", "draining")
_IN_USE = ("up", "busy")


class RunningRouter:
    """Answers of a running router about its engines, from `GET /workers` and `GET /streams`."""

    def __init__(self, workers: Sequence[Mapping[str, Any]], streams: Sequence[Mapping[str, Any]]) -> None:
        self._workers = {str(row["name"]): row for row in workers}
        self._streams = {str(row["instance_id"]): row for row in streams}

    def config(self, given: RouterConfig) -> RouterConfig:
        """A configuration with the router's engines instead of those of `given`.

        Raises:
            ConfigError: The engines contradict each other.
        """
        engines = tuple(
            Engine(
                str(row["url"]),
                name=name,
                role=None if row["role"] == "both" else str(row["role"]),
                pull=(row.get("pull") or {}).get("address"),
                pull_group=(row.get("pull") or {}).get("group") or None,
            )
            for name, row in self._workers.items()
        )
        discovery = dataclasses.replace(given.discovery, sources=())
        return dataclasses.replace(given, engines=engines, engines_file=None, discovery=discovery)

    def add_to(self, report: EngineReport, *, follows: bool) -> None:
        """Add the facts that the router reports about an engine to the engine's report.

        Args:
            report: The report; a report that is not about an engine is not changed.
            follows: True if the router should receive the engine's events.
        """
        if not report.is_of_engine or report.worker not in self._workers:
            return
        row = self._workers[report.worker]
        standing, condition = str(row["standing"]), row.get("condition") or {}
        words = f"{standing} for the router" + (f": {condition['reason']}" if condition.get("reason") else "")
        advice = str(condition.get("advice") or "")
        if standing in _PAUSES:
            report.add("router", "note", f"{words}: it gets no requests", advice, code="router_pauses")
        elif standing not in _IN_USE:
            report.add("router", "problem", words, advice, code="router_keeps_away")
        elif condition:
            report.add("router", "warning", f"{words} ({condition.get('name')})", advice, code="router_doubts")
        else:
            report.add("router", "ok", f"{words}, {row['in_flight']} requests in flight")
        if follows:
            self._add_streams(report)

    def _add_streams(self, report: EngineReport) -> None:
        streams = self._streams.get(report.worker, {}).get("streams", {})
        if not streams:
            level: Level = "note" if report.role == "decode" else "problem"
            report.add(
                "router's stream",
                level,
                "the router follows no events of it: it is chosen by load, or by what was sent to it",
                "look at the router's log; with --no-events or --index at the router, give --no-events here too",
                code="router_follows_none",
            )
            return
        bad = {rank: stream for rank, stream in streams.items() if not stream["trusted"]}
        if not bad:
            blocks = sum(int(stream["blocks"]) for stream in streams.values())
            report.add("router's stream", "ok", f"live, {blocks:,} blocks known")
            return
        rank, stream = next(iter(bad.items()))
        why = f": {stream['last_error']}" if stream.get("last_error") else ""
        report.add(
            "router's stream",
            "problem",
            f"rank {rank} is {stream['state']} for the router{why}",
            "open this port from the router's host",
            code="router_stream_not_live",
        )
