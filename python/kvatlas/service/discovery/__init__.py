"""Discovery: asks engines for the addresses of their events, registers them, and follows changes.

`probe` asks one engine, `endpoints` converts the addresses that engines listen on into reachable ones, `follow` keeps
one engine's registration up to date, `watch` follows a changing list of engines.
"""

from kvatlas.service.discovery.probe import EngineDescription, Source
from kvatlas.service.discovery.watch import Discovery

__all__ = ["Discovery", "EngineDescription", "Source"]
