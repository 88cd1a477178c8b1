"""The configuration of a service: its settings, their sources, and the values they accept.

`serving`, `following` and `sharing` declare the settings as fields of dataclasses, one for each section; `schema`
collects all sections, `section` is their base, `kinds` has the types of values, `engines` and `pools` the entries of
lists, and `read` reads a configuration from flags, the environment and a file.
"""

from kvatlas.service.config.engines import Engine, Stream
from kvatlas.service.config.following import AdoptConfig, DiscoveryConfig, StreamConfig
from kvatlas.service.config.pools import Pool
from kvatlas.service.config.read import ResolvedConfig, read_config, show_config
from kvatlas.service.config.schema import Config
from kvatlas.service.config.serving import HttpConfig, LimitsConfig, LogConfig
from kvatlas.service.config.sharing import RelayConfig, SitesConfig, SnapshotConfig

__all__ = [
    "AdoptConfig",
    "Config",
    "DiscoveryConfig",
    "Engine",
    "HttpConfig",
    "LimitsConfig",
    "LogConfig",
    "Pool",
    "RelayConfig",
    "ResolvedConfig",
    "SitesConfig",
    "SnapshotConfig",
    "Stream",
    "StreamConfig",
    "read_config",
    "show_config",
]
