"""Prompts cut into blocks, by tokens if known, else by characters.

Without a tokenizer, the characters of a token are the average of the usage that engines reported, or four without
reports. All prompts are cut at the same places, so equal beginnings stay equal.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvatlas.lab.traffic.source import UNKNOWN_OUTPUT, Ids
from kvatlas.sim.trace import TraceRequest

_CHARACTERS = 4.0  # of a token, by default


@dataclass(slots=True)
class Prompt:
    """Request whose prompt is not cut into blocks yet."""

    at: float  # seconds
    text: str = ""
    tokens: Sequence[int] | None = None  # instead of the text
    reported: int | None = None  # tokens of the prompt, as an engine counted them
    output: int | None = None  # tokens
    answer: str = ""  # if its tokens were not counted
    session: str | None = None


@dataclass(slots=True)
class Cut:
    """Requests with ids for their blocks, and the assumptions made."""

    rows: list[tuple[float, TraceRequest]] = field(default_factory=list)
    assumptions: list[str] = field(default_factory=list)


def cut_prompts(prompts: Sequence[Prompt], block: int) -> Cut:
    """Cut prompts into blocks of `block` tokens."""
    counted = [each for each in prompts if each.tokens is None and each.reported and each.text]
    reported = sum(each.reported or 0 for each in counted)
    per_token = sum(len(each.text) for each in counted) / reported if reported else _CHARACTERS
    made, ids, guessed = Cut(), Ids(), 0
    for each in prompts:
        if each.tokens is not None:
            length = len(each.tokens)
            names = [ids.of(tuple(each.tokens[n * block : (n + 1) * block])) for n in range(length // block)]
        else:
            length = max(round(len(each.text) / per_token), 1)
            cuts = [round(n * block * per_token) for n in range(length // block + 1)]
            names = [ids.of(each.text[a:b]) for a, b in itertools.pairwise(cuts)]
        output = each.output
        if output is None and each.answer:
            output = max(round(len(each.answer) / per_token), 1)
        guessed += output is None
        made.rows.append(
            (
                each.at,
                TraceRequest(
                    0, max(length, 1), UNKNOWN_OUTPUT if output is None else output, tuple(names), each.session
                ),
            )
        )
    if any(each.tokens is None for each in prompts):
        made.assumptions.append(
            f"Prompts were cut by their text, {per_token:.2f} characters to a token"
            f"{'' if reported else ' (by default)'}; --tokenizer cuts them as an engine does."
        )
    if guessed:
        made.assumptions.append(f"{guessed:,} answers of unknown length were taken to have {UNKNOWN_OUTPUT} tokens.")
    return made


def text_of(value: object) -> str:
    """A message's content, or another part of a request, as text; equal parts give equal text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
