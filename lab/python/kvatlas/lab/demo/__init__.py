"""Demo of the router in front of simulated engines, in real time: each policy in turn, with the same requests.

The engines are processes that publish events over real sockets, the router is `kvatlas router`, and requests pass
through it over HTTP. `kvatlas demo` shows the results; for precise figures, use `kvatlas replay`.
"""

from kvatlas.lab.demo.config import MOST_ENGINES, DemoConfig
from kvatlas.lab.demo.demo import Demo, PolicyResults

__all__ = ["MOST_ENGINES", "Demo", "DemoConfig", "PolicyResults"]
