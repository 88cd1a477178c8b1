"""What a service can be told: its settings, where they are read from, what values they take.

`schema` has every setting as a field of a dataclass, `kinds` says what values they take, `engines` has the entries of
the two lists, and `read` puts a configuration together from flags, the environment and a file.
"""

from kvatlas.service.config.engines import Engine, Stream
from kvatlas.service.config.read import ResolvedConfig, read_config, show_config
from kvatlas.service.config.schema import Config, DiscoveryConfig, EventsConfig, HttpConfig, LimitsConfig, LogConfig

__all__ = [
    "Config",
    "DiscoveryConfig",
    "Engine",
    "EventsConfig",
    "HttpConfig",
    "LimitsConfig",
    "LogConfig",
    "ResolvedConfig",
    "Stream",
    "read_config",
    "show_config",
]
