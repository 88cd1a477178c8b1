"""The configuration of a service: its settings, their sources, and the values they accept.

`schema` has every setting as a field of a dataclass, `kinds` says what values they take, `engines` has the entries of
the two lists, and `read` puts a configuration together from flags, the environment and a file.
"""

from kvatlas.service.config.engines import Engine, Stream
from kvatlas.service.config.read import ResolvedConfig, read_config, show_config
from kvatlas.service.config.schema import (
    AdoptConfig,
    Config,
    DiscoveryConfig,
    HttpConfig,
    LimitsConfig,
    LogConfig,
    RelayConfig,
    SitesConfig,
    SnapshotConfig,
    StreamConfig,
)

__all__ = [
    "AdoptConfig",
    "Config",
    "DiscoveryConfig",
    "Engine",
    "HttpConfig",
    "LimitsConfig",
    "LogConfig",
    "RelayConfig",
    "ResolvedConfig",
    "SitesConfig",
    "SnapshotConfig",
    "Stream",
    "StreamConfig",
    "read_config",
    "show_config",
]
