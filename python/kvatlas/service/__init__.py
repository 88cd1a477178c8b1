"""The service: follows engines' events and answers over HTTP which of them holds how much of a prompt.

`Service` runs it in this process, `serve` until a signal ends it, as `kvatlas serve` does. `load` puts its settings
together from flags, the environment and a file.
"""

from kvatlas.service.engines import Engine, Worker
from kvatlas.service.load import Loaded, load
from kvatlas.service.serve import serve
from kvatlas.service.service import Service
from kvatlas.service.settings import DiscoverySettings, HttpSettings, LogSettings, Settings, StreamSettings

__all__ = [
    "DiscoverySettings",
    "Engine",
    "HttpSettings",
    "Loaded",
    "LogSettings",
    "Service",
    "Settings",
    "StreamSettings",
    "Worker",
    "load",
    "serve",
]
