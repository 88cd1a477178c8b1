"""The engine of tests that misbehaves, or answers by hand; one that behaves is a simulated one: `kvatlas.sim.server`.

`server` has it, `behaviour` what it may do with a request, `about` what engines say of where their events are,
`events` those that tests make up.
"""

from .about import METRICS, closed_port, sglang, vllm
from .behaviour import MODEL, chunk, delta, die, event, hang, head, raw, reply, slowly, stream, usual, whole
from .events import BLOCK_SIZE, Publisher, payload, removed, stored
from .server import Engine, read_body
from .talk import Behaviour, EngineRequest, Talk

__all__ = [
    "BLOCK_SIZE",
    "METRICS",
    "MODEL",
    "Behaviour",
    "Engine",
    "EngineRequest",
    "Publisher",
    "Talk",
    "chunk",
    "closed_port",
    "delta",
    "die",
    "event",
    "hang",
    "head",
    "payload",
    "raw",
    "read_body",
    "removed",
    "reply",
    "sglang",
    "slowly",
    "stored",
    "stream",
    "usual",
    "vllm",
    "whole",
]
