"""Replays of a trace over simulated engines in virtual time, and what they found."""

from kvatlas.lab.replay.config import ReplayConfig
from kvatlas.lab.replay.results import PolicyResult, ReplayResult
from kvatlas.lab.replay.runner import replay

__all__ = ["PolicyResult", "ReplayConfig", "ReplayResult", "replay"]
