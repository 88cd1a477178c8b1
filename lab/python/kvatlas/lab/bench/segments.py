"""Segments of different lengths, concatenated in one array: starts, owners and places of elements."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def starts(lengths: Ints) -> Ints:
    """The position at which each segment begins: shape (n,)."""
    return np.cumsum(lengths) - lengths


def owners(lengths: Ints) -> Ints:
    """The number of the segment that each element belongs to: shape (sum of lengths,)."""
    return np.repeat(np.arange(len(lengths)), lengths)


def places(lengths: Ints) -> Ints:
    """The place of each element within its segment: shape (sum of lengths,)."""
    return np.arange(int(lengths.sum())) - np.repeat(starts(lengths), lengths)
