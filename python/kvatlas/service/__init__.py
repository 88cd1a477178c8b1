"""The service: receives engines' events and answers over HTTP how much of a prompt each engine holds.

`Service` runs it in this process, `serve` until a signal ends it, like `kvatlas serve`. `Config` has its settings;
`read_config` reads them from flags, the environment and a file.
"""

from kvatlas.service.config import (
    AdoptConfig,
    Config,
    DiscoveryConfig,
    Engine,
    HttpConfig,
    LogConfig,
    RelayConfig,
    ResolvedConfig,
    SitesConfig,
    SnapshotConfig,
    Stream,
    StreamConfig,
    read_config,
)
from kvatlas.service.serve import serve
from kvatlas.service.service import Service

__all__ = [
    "AdoptConfig",
    "Config",
    "DiscoveryConfig",
    "Engine",
    "HttpConfig",
    "LogConfig",
    "RelayConfig",
    "ResolvedConfig",
    "Service",
    "SitesConfig",
    "SnapshotConfig",
    "Stream",
    "StreamConfig",
    "read_config",
    "serve",
]
