"""Discovery: asks engines where their events are, registers them, and watches that they stay the same.

`probe` asks one engine, `endpoints` makes addresses that can be reached of those that engines listen on, `follow` keeps
one engine registered as it is, `watch` keeps a changing list of them.
"""

from kvatlas.service.discovery.probe import EngineDescription, Source
from kvatlas.service.discovery.watch import Discovery

__all__ = ["Discovery", "EngineDescription", "Source"]
