"""The router in front of simulated engines, in real time: policies in turn, the same engines and requests for each.

Everything runs in real time: engines are processes that publish over real sockets, the router is `kvatlas router`, and
    requests go through it over HTTP. `kvatlas demo` shows it; for figures, use `kvatlas replay`.
"""

from kvatlas.lab.demo.config import MOST_ENGINES, DemoConfig
from kvatlas.lab.demo.demo import Demo, PolicyResults

__all__ = ["MOST_ENGINES", "Demo", "DemoConfig", "PolicyResults"]
