"""Replays of a trace on simulated engines in virtual time, and their results."""

from kvatlas.lab.replay.config import ReplayConfig
from kvatlas.lab.replay.results import PolicyResult, ReplayResult
from kvatlas.lab.replay.runner import replay

__all__ = ["PolicyResult", "ReplayConfig", "ReplayResult", "replay"]
