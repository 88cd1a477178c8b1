"""Routing policies side by side over simulated engines in real time: the same requests, engines of its own for each.

Nothing in virtual time here: engines are processes that publish over real sockets, a service follows them, policies
that use the index ask the service over HTTP. `kvatlas demo` shows it; `kvatlas replay` is for figures.
"""

from kvatlas.lab.demo.config import MOST_ENGINES, DemoConfig
from kvatlas.lab.demo.race import PolicyStanding, Race, Standing

__all__ = ["MOST_ENGINES", "DemoConfig", "PolicyStanding", "Race", "Standing"]
