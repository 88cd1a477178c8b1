"""Reader of prompts that a trace records as increments: a prefix of an earlier prompt, followed by new blocks.

A row with `prefix_len` has only the ids of its new blocks. They follow the first blocks of an earlier request: the one
named by `parent`, or else the previous one of the same session. `prefix_len` counts blocks or tokens: only one of the
two readings gives as many ids as `input_length` has blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvatlas.errors import TraceError

FIELD = "prefix_len"
_PARENTS = ("parent", "parent_id")


class Increments:
    """Earlier prompts of a trace that a later row may continue: the last one of each session, and those with an id."""

    def __init__(self) -> None:
        self._last: dict[object, Sequence[int]] = {}
        self._named: dict[object, Sequence[int]] = {}

    def spell_out(self, row: Mapping[str, Any], ids: Sequence[int], length: int, block: int) -> Sequence[int]:
        """Complete the prompt of a row with the leading blocks of the prompt that it continues. Raises `TraceError`."""
        if row.get(FIELD) is None:
            return ids
        before = self._before(row)
        return [*before[: prefix_blocks(row[FIELD], before, ids, length, block)], *ids]

    def note(self, row: Mapping[str, Any], ids: Sequence[int]) -> None:
        """Record the prompt of a row, as the ids of all its blocks, for later rows that continue it."""
        if row.get("session_id") is not None:
            self._last[row["session_id"]] = ids
        if (own := row.get("id", row.get("request_id"))) is not None:
            self._named[own] = ids

    def _before(self, row: Mapping[str, Any]) -> Sequence[int]:
        parent = next((row[each] for each in _PARENTS if row.get(each) is not None), None)
        session = row.get("session_id")
        for name, known in ((parent, self._named), (session, self._last), (parent, self._last)):
            if name is not None and name in known:
                return known[name]
        if row[FIELD] == 0:
            return ()
        if parent is None and session is None:
            raise TraceError(f"{FIELD} needs a session_id, or a parent: the id of the request that it goes on with")
        raise TraceError(f"{FIELD} {row[FIELD]!r:.20}, but no request before it is {parent or session!r:.40}")


def prefix_blocks(prefix: object, before: Sequence[int], ids: Sequence[int], length: int, block: int) -> int:
    """Number of leading blocks that a prompt of `length` tokens shares with the earlier prompt `before`.

    `prefix`: length of the shared part according to the row, in blocks or in tokens. `ids`: ids of the row's new
    blocks. `block`: tokens per block. Raises `TraceError` if neither unit fits.
    """
    if type(prefix) is not int or prefix < 0:
        raise TraceError(f"{FIELD} must be a whole number from 0, not {prefix!r:.40}")
    full, needed = length // block, -(-length // block)
    fits = [each for each in (prefix, prefix // block) if full <= each + len(ids) <= needed]
    if not fits:
        raise TraceError(
            f"{FIELD} {prefix} and {len(ids)} hash_ids for input_length {length}, which has {needed} blocks of {block}"
        )
    if fits[0] > len(before):
        raise TraceError(f"{FIELD} {prefix} is more than the {len(before)} blocks of {block} of the prompt before it")
    return fits[0]
