"""64-bit hashes as numpy arrays, and a function that spreads numbers evenly over 64 bits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31 = np.uint64(30), np.uint64(27), np.uint64(31)


def mix(values: Hashes) -> Hashes:
    """Spread `values` evenly over 64 bits, by a bijection: distinct values stay distinct.

    The function is the finalizer of SplitMix64.
    """
    x = (values ^ (values >> _S30)) * _M1
    x = (x ^ (x >> _S27)) * _M2
    return x ^ (x >> _S31)
