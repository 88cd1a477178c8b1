"""Replays, and what they found."""

from kvatlas.bench.results import PolicyResult, ReplayResult
from kvatlas.bench.runner import replay
from kvatlas.bench.settings import ReplaySettings, SettingsError

__all__ = ["PolicyResult", "ReplayResult", "ReplaySettings", "SettingsError", "replay"]
