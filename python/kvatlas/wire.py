"""Events that inference engines publish about their KV caches: decoded, as values, and encoded again.

`decode_batch` decodes a payload (the third frame of an engine's ZMQ message) of vLLM or SGLang, and
`BlockIndex.apply(worker, batch)` applies the result. `encode_batch` encodes events as an engine does, for tests and
simulated engines. `keyed_content_hashes` computes the content hashes of prompts with images.
"""

from kvatlas._native import (
    Batch,
    Cleared,
    RefusedEvent,
    Removed,
    Stored,
    Tally,
    decode_batch,
    encode_batch,
    keyed_content_hashes,
)

__all__ = [
    "Batch",
    "Cleared",
    "Event",
    "RefusedEvent",
    "Removed",
    "Stored",
    "Tally",
    "decode_batch",
    "encode_batch",
    "keyed_content_hashes",
]

Event = Stored | Removed | Cleared
