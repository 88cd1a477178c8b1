"""Segments of different lengths in one array: start of each segment, and segment of each element."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def starts(lengths: Ints) -> Ints:
    """Position at which each segment begins: shape (n,)."""
    return np.cumsum(lengths) - lengths


def owners(lengths: Ints) -> Ints:
    """Number of the segment to which each element belongs: shape (sum of lengths,)."""
    return np.repeat(np.arange(len(lengths)), lengths)


def places(lengths: Ints) -> Ints:
    """Position of each element within its segment: shape (sum of lengths,)."""
    return np.arange(int(lengths.sum())) - np.repeat(starts(lengths), lengths)
