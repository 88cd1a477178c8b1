"""Conversion of foreign request logs to traces, and statistics of traces."""

from kvatlas.lab.traffic.profile import Profile, profile
from kvatlas.lab.traffic.reading import FORMATS, read_traffic
from kvatlas.lab.traffic.source import Conversion, Traffic
from kvatlas.sim.curve import HitCurve, hit_curve

__all__ = ["FORMATS", "Conversion", "HitCurve", "Profile", "Traffic", "hit_curve", "profile", "read_traffic"]
