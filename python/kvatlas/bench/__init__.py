"""Replays, and what they found."""

from kvatlas.bench.policies import POLICIES, Depths, Load, Policy, PolicyError, Prompt, find_policy
from kvatlas.bench.results import PolicyResult, ReplayResult
from kvatlas.bench.runner import replay
from kvatlas.bench.settings import ReplaySettings, SettingsError

__all__ = [
    "POLICIES",
    "Depths",
    "Load",
    "Policy",
    "PolicyError",
    "PolicyResult",
    "Prompt",
    "ReplayResult",
    "ReplaySettings",
    "SettingsError",
    "find_policy",
    "replay",
]
