"""Simulated engines that are really there: over ZMQ and HTTP, in real time, with faults on purpose.

`Fleet` starts engines in processes and has handles to ask and to disturb them; `LiveEngine` is one engine in a running
event loop; `Publisher` is a bare stream at full speed. Needs what `pip install "kvatlas[sim]"` installs.
"""

from kvatlas.errors import KvatlasError

try:
    import aiohttp as _aiohttp
    import msgspec as _msgspec
    import zmq as _zmq
except ModuleNotFoundError as error:
    message = f"live engines need {error.name}: pip install 'kvatlas[sim]'"
    raise KvatlasError(message, "missing_package") from error
else:
    del _aiohttp, _msgspec, _zmq

from kvatlas.sim.live.engine import LiveEngine
from kvatlas.sim.live.errors import EngineError, RequestFailedError
from kvatlas.sim.live.faults import Faults
from kvatlas.sim.live.fleet import EngineHandle, Fleet
from kvatlas.sim.live.load import LoadSettings, prompt_tokens
from kvatlas.sim.live.publisher import Publisher
from kvatlas.sim.live.settings import LiveSettings
from kvatlas.sim.live.truth import Completion, Query, RankState, Truth

__all__ = [
    "Completion",
    "EngineError",
    "EngineHandle",
    "Faults",
    "Fleet",
    "LiveEngine",
    "LiveSettings",
    "LoadSettings",
    "Publisher",
    "Query",
    "RankState",
    "RequestFailedError",
    "Truth",
    "prompt_tokens",
]
