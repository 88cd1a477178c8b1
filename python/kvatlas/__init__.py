"""An exact index of the KV-cache blocks that a fleet of inference engines holds.

`BlockIndex` records the events that engines announce and returns how much of a prompt each worker holds at present.
`content_hashes` and `prefix_hashes` name blocks by their tokens. `Service` follows engines and answers over HTTP;
`Client` and `AsyncClient` query it. Both are imported when first used. `kvatlas.reference` is the index in plain
Python, slow and simple enough to be checked by reading.
"""

import importlib as _importlib
import warnings as _warnings
from pkgutil import extend_path as _extend_path
from typing import TYPE_CHECKING

# In a checkout the laboratory's part of the package is in a directory of its own. Installed, all parts are in one.
__path__ = _extend_path(__path__, __name__)

from kvatlas import _extension, errors, events  # noqa: F401 - the first chooses what `kvatlas._native` is
from kvatlas._native import BlockIndex, Match, __version__, build_profile, content_hashes, prefix_hashes

if TYPE_CHECKING:
    from kvatlas.client import AsyncClient, Client
    from kvatlas.service import Service

__all__ = [
    "AsyncClient",
    "BlockIndex",
    "Client",
    "Match",
    "Service",
    "__version__",
    "content_hashes",
    "errors",
    "events",
    "prefix_hashes",
]

# An HTTP client takes a while to import, and the index needs none.
_LAZY = {"AsyncClient": "kvatlas.client", "Client": "kvatlas.client", "Service": "kvatlas.service"}

if build_profile != "release":
    _warnings.warn(
        "kvatlas is a debug build, many times slower than a release build; build it with `make build`",
        RuntimeWarning,
        stacklevel=2,
    )


if not TYPE_CHECKING:  # type checkers that see it accept every name

    def __getattr__(name: str) -> object:
        module = _LAZY.get(name)
        if module is None:
            raise AttributeError(f"module 'kvatlas' has no attribute {name!r}")
        value: object = getattr(_importlib.import_module(module), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return __all__
