"""A fleet of simulated engines in real time: the same requests routed by each policy to engines of its own.

Nothing in virtual time here: engines are processes that publish over real sockets, a service follows them, policies
that use the index ask the service over HTTP. `kvatlas live` shows it; `kvatlas replay` is for figures.
"""

from kvatlas.bench.live.race import LiveOptions, Race, Standing

__all__ = ["LiveOptions", "Race", "Standing"]
