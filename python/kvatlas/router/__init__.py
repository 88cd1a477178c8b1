"""The router: stands in front of engines, and sends each request to the engine of least cost.

`Router` runs it in this process, `run` until a signal ends it, like `kvatlas router`. `RouterConfig` has its settings;
`read_router_config` reads them from flags, the environment and a file. `check` tests each engine.
"""

from kvatlas.router.config import (
    HealthConfig,
    RouterConfig,
    RouterHttpConfig,
    RouterSection,
    UpstreamConfig,
    read_router_config,
)
from kvatlas.router.router import Router
from kvatlas.router.run import run

__all__ = [
    "HealthConfig",
    "Router",
    "RouterConfig",
    "RouterHttpConfig",
    "RouterSection",
    "UpstreamConfig",
    "read_router_config",
    "run",
]
