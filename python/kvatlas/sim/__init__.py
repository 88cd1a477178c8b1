"""Simulation of a fleet of inference engines and its workload, small enough for a laptop.

`Engine` imitates an inference engine's KV cache (a paged block pool, as in vLLM) in virtual time. `generate` makes a
workload; `read_trace` reads a recorded one.
"""

from kvatlas.sim.engine import Engine
from kvatlas.sim.events import NullSink, Recorder, Sink
from kvatlas.sim.fleet import FleetConfig
from kvatlas.sim.pool import BlockPool
from kvatlas.sim.request import Request, State
from kvatlas.sim.scheduler import Counters, EngineConfig, Listener
from kvatlas.sim.statistics import TraceStatistics, infinite_cache, trace_statistics
from kvatlas.sim.tiers import TierConfig
from kvatlas.sim.trace import (
    TRACE_BLOCK,
    Trace,
    TraceRequest,
    make_request,
    read_trace,
    use_own_names,
    write_trace,
)
from kvatlas.sim.transfers import TRANSFERS, Transfer, find_transfer
from kvatlas.sim.workload import WorkloadConfig, generate

__all__ = [
    "TRACE_BLOCK",
    "TRANSFERS",
    "BlockPool",
    "Counters",
    "Engine",
    "EngineConfig",
    "FleetConfig",
    "Listener",
    "NullSink",
    "Recorder",
    "Request",
    "Sink",
    "State",
    "TierConfig",
    "Trace",
    "TraceRequest",
    "TraceStatistics",
    "Transfer",
    "WorkloadConfig",
    "find_transfer",
    "generate",
    "infinite_cache",
    "make_request",
    "read_trace",
    "trace_statistics",
    "use_own_names",
    "write_trace",
]
