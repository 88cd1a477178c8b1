"""The engine of tests that misbehaves, or answers by hand; one that behaves is a simulated one: `kvatlas.sim.server`.

`server` has it, `behaviour` what it may do with a request, `about` what engines say of their events.
"""

from .about import METRICS, closed_port, sglang, vllm
from .behaviour import MODEL, chunk, delta, die, event, hang, head, raw, reply, slowly, stream, usual, whole
from .server import Engine, read_body
from .talk import Behaviour, EngineRequest, Talk

__all__ = [
    "METRICS",
    "MODEL",
    "Behaviour",
    "Engine",
    "EngineRequest",
    "Talk",
    "chunk",
    "closed_port",
    "delta",
    "die",
    "event",
    "hang",
    "head",
    "raw",
    "read_body",
    "reply",
    "sglang",
    "slowly",
    "stream",
    "usual",
    "vllm",
    "whole",
]
