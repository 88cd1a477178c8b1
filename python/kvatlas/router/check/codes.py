"""Codes of findings, for programs, and the exit statuses derived from them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

OK = "ok"
Kind = Literal["engine", "events", "tokens", "other"]

STATUSES: dict[Kind, int] = {"engine": 3, "events": 4, "tokens": 5, "other": 1}
"""Exit status for each kind of problem. If there are several, the first kind in this order counts."""

CODES: dict[str, Kind] = {
    OK: "other",
    "unreachable": "engine",
    "unhealthy": "engine",
    "hangs": "engine",
    "models_not_told": "engine",
    "no_models": "engine",
    "no_answer": "engine",
    "router_keeps_away": "engine",
    "sites_unreachable": "engine",
    "sites_no_answer": "engine",
    "no_events": "events",
    "not_followed": "events",
    "not_registered": "events",
    "stream_not_live": "events",
    "no_live_events": "events",
    "router_follows_none": "events",
    "router_stream_not_live": "events",
    "events_refused": "events",
    "nothing_announced": "events",
    "wrong_block_size": "events",
    "block_sizes_differ": "events",
    "cannot_tokenize": "tokens",
    "no_tokens": "tokens",
    "tokens_differ": "tokens",
    "token_count_differs": "tokens",
    "template_fails": "tokens",
    "template_differs": "tokens",
    "agent_no_tokens": "tokens",
    "agent_tokens_differ": "tokens",
    "blocks_differ": "tokens",
    "wrong_model": "other",
    "unused_tokenizer": "other",
    "handover_failed": "other",
    "site_without_engine": "other",
    "engine_without_site": "other",
    "site_model_missing": "other",
    "site_block_size": "other",
    "reports_refused": "other",
    "lmcache_unreachable": "other",
    "lmcache_model": "other",
    "lmcache_ranks": "other",
    "lmcache_shared": "other",
    "pool_chunk": "other",
    "pool_names_differ": "other",
    "store_unreachable": "other",
    "store_keys_unread": "other",
    "store_keys_unclear": "other",
    "chunks_differ": "other",
    "pull_old": "other",
    "pull_unheard": "other",
    "pull_no_tier": "other",
    "pull_no_host": "other",
    "pull_names_differ": "other",
    # Warnings and notes
    "asleep": "engine",
    "router_pauses": "engine",
    "router_doubts": "other",
    "models_differ": "other",
    "ranks_refused": "other",
    "no_replay": "events",
    "events_not_wanted": "events",
    "events_at_service": "events",
    "not_tokenized": "tokens",
    "engine_tokenizes": "tokens",
    "tokens_not_compared": "tokens",
    "chat_not_taken": "tokens",
    "agents_not_compared": "tokens",
    "agents_not_rendered": "tokens",
    "answers_in_pairs": "other",
    "cache_not_reported": "other",
    "cache_missed": "other",
    "site_not_known": "other",
    "sites_slow": "other",
    "tier_silent": "events",
    "tier_names_only": "events",
    "tier_filled_late": "other",
    "storage_unseen": "events",
    "tiers_not_told": "other",
    "lmcache_empty": "other",
    "pool_silent": "events",
    "pool_own": "events",
    "pool_unset": "other",
    "store_events_unset": "other",
    "store_no_events": "other",
    "store_empty": "other",
    "store_tier": "other",
    "pull_unset": "other",
    "pull_alone": "other",
    "pull_unreachable": "other",
    "pull_address": "other",
    "pull_timeout": "other",
    "pull_names_unseen": "other",
}
"""Kind of problem for each code of a finding. Codes keep their meaning from version to version."""


def exit_status(problems: Iterable[str]) -> int:
    """The exit status of a check that found problems with these codes; 0 without any."""
    kinds = {CODES[code] for code in problems}
    return next((status for kind, status in STATUSES.items() if kind in kinds), 0)
