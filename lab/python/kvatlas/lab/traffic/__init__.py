"""Traffic as others record it made into a trace, a trace in figures, and the hit rate of a cache of any size."""

from kvatlas.lab.traffic.profile import Profile, profile
from kvatlas.lab.traffic.reading import FORMATS, read_traffic
from kvatlas.lab.traffic.source import Conversion, Traffic
from kvatlas.sim.curve import HitCurve, hit_curve

__all__ = ["FORMATS", "Conversion", "HitCurve", "Profile", "Traffic", "hit_curve", "profile", "read_traffic"]
