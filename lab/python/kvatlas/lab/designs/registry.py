"""Rungs of the ladder of designs, with the cost and the wrong answers of each."""

from dataclasses import dataclass
from typing import Final

from kvatlas._native import Rung
from kvatlas._native import rungs as native_rungs
from kvatlas.errors import InvalidArgumentError, InvalidTypeError
from kvatlas.events import Event, Remove, Store
from kvatlas.lab.designs.nested_dict import NestedDict

__all__ = ["RUNGS", "Deviation", "RungInfo", "open_rung"]


@dataclass(frozen=True, slots=True)
class Deviation:
    """Deviation of a design from the reference, with its smallest example.

    After `events` of one worker, `query` gets the depth `answer`; the right depth is `truth`.
    """

    name: str
    """Kind of deviation: "conflation", "holes", "orphans", "renames" or "aliases"."""
    what: str
    """Description of the deviation, in a sentence."""
    events: tuple[Event, ...]
    """Events that the worker announces."""
    query: tuple[int, ...]
    """Content hashes of the queried prompt."""
    answer: int
    """Depth that the design answers, in blocks."""
    truth: int
    """Right depth, in blocks."""


@dataclass(frozen=True, slots=True)
class RungInfo:
    """Rung of the ladder: a design of the index."""

    name: str
    """Name of the rung for `open_rung`."""
    step: int
    """Number of the rung, 1 to 6; 7 is the design of kvatlas itself."""
    what: str
    """Description of the rung."""
    promise: str
    """Cost of a lookup, and the way in which events are applied."""
    options: tuple[str, ...]
    """Options of `open_rung` that the rung uses, besides `block_size`."""
    deviations: tuple[Deviation, ...]
    """All deviations of the rung from `kvatlas.reference`."""
    strict_deviations: tuple[Deviation, ...] | None
    """Deviations that remain with `strict=True`; None if the rung cannot be strict."""


def _store(parent: int | None, *blocks: tuple[int, int]) -> Store:
    names, contents = zip(*blocks, strict=True)
    return Store("w", names, contents, parent)


_BY_CONTENT: Final = {
    "conflation": Deviation(
        "conflation",
        "A content counts wherever it is asked for: after another prefix, or once more.",
        (_store(None, (71, 1), (72, 2)), _store(None, (73, 3), (74, 4))),
        (1, 4),
        answer=2,
        truth=1,
    ),
    "orphans": Deviation(
        "orphans",
        "A block whose parent is not held counts as if it began a prompt.",
        (_store(71, (72, 2)),),
        (2,),
        answer=1,
        truth=0,
    ),
    "renames": Deviation(
        "renames",
        "When a name comes to mean another block, what continued the old one is not seen to continue the new one.",
        (_store(None, (71, 1), (72, 2)), _store(None, (71, 3)), _store(None, (73, 1))),
        (1, 2),
        answer=2,
        truth=1,
    ),
    "aliases": Deviation(
        "aliases",
        "Of two names of one block, one is removed: what continued it counts through the other.",
        (_store(None, (71, 1), (72, 2)), _store(None, (73, 1)), Remove("w", (71,))),
        (1, 2),
        answer=2,
        truth=1,
    ),
}

_BY_PLACE: Final = {
    "orphans": Deviation(
        "orphans",
        "A store whose parent is not held has no place: it is refused, and not there when the parent comes.",
        (_store(71, (72, 2)), _store(None, (71, 1))),
        (1, 2),
        answer=1,
        truth=2,
    ),
    "renames": Deviation(
        "renames",
        "A name that comes to mean another block leaves behind what continued it, where it was.",
        (_store(None, (71, 1), (72, 2)), _store(None, (71, 3)), _store(None, (73, 1))),
        (1, 2),
        answer=2,
        truth=1,
    ),
    "aliases": Deviation(
        "aliases",
        "Two names of one block are one place, held until both are removed, with all that continued either.",
        (_store(None, (71, 1)), _store(None, (73, 1)), _store(71, (72, 2)), Remove("w", (71,))),
        (1, 2),
        answer=2,
        truth=1,
    ),
}

_BY_LEAPS: Final = _BY_PLACE | {
    "conflation": Deviation(
        "conflation",
        "A prefix that stands alone at its place is believed without being compared: lazy hashes.",
        (_store(None, (71, 1)), _store(None, (73, 3), (74, 4))),
        (1, 4),
        answer=2,
        truth=1,
    ),
    "holes": Deviation(
        "holes",
        "A jump that finds the worker at both ends does not see that a block between them is gone.",
        (_store(None, (71, 1), (72, 2), (73, 3)), Remove("w", (72,))),
        (1, 2, 3),
        answer=3,
        truth=1,
    ),
}

_POOL: Final = "one lookup at a time each on its caller's thread, beside the changes"
_TREE: Final = "O(depth + workers)"
_LEAPS: Final = "O(depth / jump size + workers)"

_ABOUT: Final[dict[str, tuple[int, str, tuple[str, ...], dict[str, Deviation]]]] = {
    "dict": (1, "O(workers x depth); lookups share a lock that each change takes alone", ("strict",), _BY_CONTENT),
    "dict-actor": (2, "O(workers x depth); one line for lookups and changes", ("strict",), _BY_CONTENT),
    "inverted": (3, "O(depth x sets compared); one line for lookups and changes", ("strict",), _BY_CONTENT),
    "radix": (4, f"{_TREE}; one line for lookups and changes", (), _BY_PLACE),
    "radix-sharded": (4, f"{_TREE} in each shard; a line a shard, every lookup asks all", ("shards",), _BY_PLACE),
    "radix-concurrent": (5, f"{_TREE}; {_POOL}", ("event_threads",), _BY_PLACE),
    "positional": (6, f"{_LEAPS}; {_POOL}", ("strict", "event_threads", "jump_size"), _BY_LEAPS),
    "positional-bisect": (6, f"{_LEAPS}; {_POOL}", ("strict", "event_threads", "jump_size"), _BY_LEAPS),
    "positional-arrays": (6, f"{_LEAPS}; {_POOL}", ("strict", "event_threads", "jump_size"), _BY_LEAPS),
    "grouped": (
        6,
        f"{_LEAPS} in each group that can win; {_POOL}",
        ("strict", "event_threads", "jump_size", "group_size"),
        _BY_LEAPS,
    ),
    "block-index": (7, f"O(runs + depth / 8), whatever the workers; {_POOL}", ("event_threads",), {}),
    "block-index-scores": (7, f"O(runs + depth / 8 + workers); {_POOL}", ("event_threads",), {}),
}


def _all() -> dict[str, RungInfo]:
    python = RungInfo(
        "dict-python",
        1,
        "nested dictionary in plain Python, as the story begins",
        "O(workers x depth); one thread",
        ("strict",),
        tuple(_BY_CONTENT.values()),
        (),
    )
    rungs = {python.name: python}
    for name, what, deviations, strict in native_rungs():
        step, promise, options, described = _ABOUT[name]
        lax = tuple(described[deviation] for deviation in deviations)
        left = None if strict is None else tuple(described[deviation] for deviation in strict)
        rungs[name] = RungInfo(name, step, what, promise, options, lax, left)
    return rungs


RUNGS: Final[dict[str, RungInfo]] = _all()
"""All rungs (designs) by name, lowest first."""


def open_rung(
    name: str,
    *,
    strict: bool = False,
    event_threads: int = 1,
    jump_size: int = 32,
    shards: int = 2,
    group_size: int = 64,
    block_size: int = 16,
) -> Rung | NestedDict:
    """Create an empty index of one design (a rung of the ladder).

    Options that a rung does not use are checked and ignored. A name that ends in "-strict" makes the rung strict.

    Args:
        name: A name in `RUNGS`.
        strict: True to avoid the wrong answers that the design can avoid.
        event_threads: Number of threads that apply events, for rungs with a thread pool; 1 to 1,024.
        jump_size: Length of a jump of the positional rungs, in blocks; at least 1.
        shards: Number of actors of "radix-sharded"; 1 to 1,024.
        group_size: Number of workers in a group of "grouped"; at least 1.
        block_size: Tokens per block, for ``tokens=``; at least 1.

    Returns:
        A `Rung`, or a `NestedDict` for "dict-python".

    Raises:
        InvalidTypeError: An argument is of the wrong type.
        InvalidArgumentError: The rung is unknown ("unknown_rung") or cannot be strict ("never_strict"), or a number is
            out of range.
        DesignError: The system could not start the threads.
    """
    if not isinstance(name, str):
        raise InvalidTypeError(f"name must be a str, got {type(name).__name__}")
    base = name.removesuffix("-strict")
    if base not in RUNGS:
        raise InvalidArgumentError(f'unknown rung "{name}": it is one of {", ".join(RUNGS)}', "unknown_rung")
    # The rung in Python has its options checked like the rest, by the cheapest of them.
    rung = Rung(
        "dict" if base == "dict-python" else name,
        strict=strict,
        event_threads=event_threads,
        jump_size=jump_size,
        shards=shards,
        group_size=group_size,
        block_size=block_size,
    )
    if base == "dict-python":
        return NestedDict(strict=strict or base != name, block_size=block_size)
    return rung
