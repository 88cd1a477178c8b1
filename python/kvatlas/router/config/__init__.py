"""All settings of the router: those of the service, which it embeds, and its own.

They are declared like the service's, field by field, so that the command line, the environment, the file, the printed
configuration and the documentation are made from one list.
"""

from kvatlas.router.config.engines import HealthConfig, UpstreamConfig
from kvatlas.router.config.placing import SESSION_SOURCES, RouterSection
from kvatlas.router.config.schema import (
    DEFAULT_BLOCK_SIZE,
    ROUTER,
    ROUTER_SECRETS,
    ROUTER_SECTIONS,
    RouterConfig,
    read_router_config,
    show_router_config,
)
from kvatlas.router.config.serving import RouterHttpConfig

__all__ = [
    "DEFAULT_BLOCK_SIZE",
    "ROUTER",
    "ROUTER_SECRETS",
    "ROUTER_SECTIONS",
    "SESSION_SOURCES",
    "HealthConfig",
    "RouterConfig",
    "RouterHttpConfig",
    "RouterSection",
    "UpstreamConfig",
    "read_router_config",
    "show_router_config",
]
