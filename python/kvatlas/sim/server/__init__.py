"""Simulated engines with real ZMQ and HTTP sockets, in real time, with faults on request.

`Fleet` starts engines in processes of their own, with handles to query them and to inject faults. `EngineServer` is one
engine in a running event loop. `Publisher` is an event stream without an engine, at full speed. The package extra `sim`
is required: pip install 'kvatlas[sim]'.
"""

from kvatlas._extras import require

require("kvatlas.sim.server", "sim", ("aiohttp", "msgspec", "zmq"))

from kvatlas.sim.server.config import ServerConfig  # noqa: E402 - not before it is known what is missing
from kvatlas.sim.server.faults import Faults  # noqa: E402
from kvatlas.sim.server.fleet import EngineHandle, Fleet  # noqa: E402
from kvatlas.sim.server.publisher import Publisher  # noqa: E402
from kvatlas.sim.server.server import EngineServer  # noqa: E402
from kvatlas.sim.server.tokens import write_tokenizer  # noqa: E402
from kvatlas.sim.server.traffic import TrafficConfig, prompt_tokens  # noqa: E402
from kvatlas.sim.server.truth import Completion, Query, RankState, Truth  # noqa: E402

__all__ = [
    "Completion",
    "EngineHandle",
    "EngineServer",
    "Faults",
    "Fleet",
    "Publisher",
    "Query",
    "RankState",
    "ServerConfig",
    "TrafficConfig",
    "Truth",
    "prompt_tokens",
    "write_tokenizer",
]
