"""An exact index of the KV-cache blocks that a fleet of inference engines holds.

`BlockIndex` is told what engines announce and answers which worker holds how much of a prompt, right now.
`content_hashes` and `prefix_hashes` name blocks by their tokens. `kvatlas.reference` is the same in plain Python,
slow and obviously right.
"""

import warnings as _warnings

from kvatlas import errors, events
from kvatlas._native import BlockIndex, Match, __version__, build_profile, content_hashes, prefix_hashes

__all__ = ["BlockIndex", "Match", "__version__", "content_hashes", "errors", "events", "prefix_hashes"]

if build_profile != "release":
    _warnings.warn(
        "kvatlas is a debug build, many times slower than a release build; build it with `make build`",
        RuntimeWarning,
        stacklevel=2,
    )
