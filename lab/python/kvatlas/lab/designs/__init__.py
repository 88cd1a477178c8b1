"""Designs of one index, from a nested dictionary up to `kvatlas.BlockIndex`, behind one interface.

`RUNGS` lists the designs (rungs of a ladder from simple to fast): the step of each rung, the cost of its lookups, and
its wrong answers, each with the smallest example. `open_rung` creates a rung, with the methods of `BlockIndex`.
`PositionalIndexer` is rung 6, with the names that other implementations use for its operations.

Examples:
    >>> from kvatlas.lab.designs import RUNGS, open_rung
    >>> rung = open_rung("inverted")
    >>> rung.store("w0", block_hashes=[71, 72, 73], content_hashes=[1, 2, 3])
    >>> rung.store("w1", block_hashes=[71], content_hashes=[1])
    >>> rung.flush()
    >>> rung.find(content_hashes=[1, 2, 4]).levels()
    [(2, ['w0']), (1, ['w1'])]

    It identifies a block by its content alone, so its answer for a prompt that repeats itself is wrong:

    >>> rung.find(content_hashes=[1, 1]).scores()
    {'w0': 2, 'w1': 2}
    >>> [deviation.name for deviation in RUNGS["inverted"].deviations]
    ['conflation', 'orphans', 'renames', 'aliases']
    >>> RUNGS["inverted"].strict_deviations
    ()
"""

from kvatlas._native import PositionalIndexer, Rung, RungMatch
from kvatlas.lab.designs.nested_dict import NestedDict
from kvatlas.lab.designs.registry import RUNGS, Deviation, RungInfo, open_rung

__all__ = [
    "RUNGS",
    "Deviation",
    "NestedDict",
    "PositionalIndexer",
    "Rung",
    "RungInfo",
    "RungMatch",
    "open_rung",
]
