"""Prompts cut into blocks, by tokens if known, otherwise by characters.

Without a tokenizer, the number of characters in a token is the average according to the usage that engines reported, or
four without reports. All prompts are cut at the same places, so equal beginnings stay equal. Reports that do not fit
the text (because it was cut, or the tokens are those of several requests) are left out, with a warning.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvatlas._text import counted
from kvatlas.lab.traffic.source import UNKNOWN_OUTPUT, Ids
from kvatlas.lab.traffic.turns import Turn, link_turns
from kvatlas.sim.trace import TraceRequest

_CHARACTERS = 4.0  # of a token, by default
# Characters of a token, between scripts with a token or more for each character, and code with long words and spaces.
_FEWEST, _MOST = 0.4, 12.0
_TEMPLATE = 200  # tokens that a template may add to a short text
_APART = 1.25  # between the numbers of tokens that a tokenizer and an engine may count


@dataclass(frozen=True, slots=True)
class History:
    """Hashes of a chat's messages, with which to find out if another chat continues it."""

    whole: int  # of all messages
    answered: tuple[int, ...]  # of the messages before each answer


@dataclass(slots=True)
class Prompt:
    """Request whose prompt is not yet cut into blocks."""

    at: float  # seconds
    text: str = ""
    tokens: Sequence[int] | None = None  # instead of the text
    reported: int | None = None  # tokens of the prompt, as an engine counted them
    output: int | None = None  # tokens
    answer: str = ""  # if its tokens were not counted
    session: str | None = None
    end: float | None = None  # of the answer, in seconds
    history: History | None = None  # of a chat


@dataclass(slots=True)
class Cut:
    """Requests with ids for their blocks, the assumptions made, and warnings."""

    rows: list[tuple[float, TraceRequest]] = field(default_factory=list)
    assumptions: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def cut_prompts(prompts: Sequence[Prompt], block: int) -> Cut:
    """Cut prompts into blocks of `block` tokens."""
    told = [each for each in prompts if each.reported and (each.tokens is not None or each.text)]
    used = [each for each in told if each.tokens is None and _fits(each)]
    reported = sum(each.reported or 0 for each in used)
    per_token = sum(len(each.text) for each in used) / reported if reported else _CHARACTERS
    made, ids, guessed = Cut(warnings=_warnings(told)), Ids(), 0
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


def link_prompts(prompts: Sequence[Prompt], cut: Cut) -> list[tuple[float, TraceRequest]]:
    """Sort the requests of prompts by time, and add their dependencies.

    Each depends on the previous request in its session, if that ended before.
    """
    return link_turns([Turn(each.at, each.end, request) for each, (_, request) in zip(prompts, cut.rows, strict=True)])


def _fits(prompt: Prompt) -> bool:
    """True unless the reported number of tokens is implausible for the text of a prompt."""
    reported = prompt.reported or 0
    if prompt.tokens is not None:
        known = len(prompt.tokens)
        return max(known, reported) <= _APART * min(known, reported) or abs(known - reported) <= _TEMPLATE
    per_token = len(prompt.text) / reported
    return per_token <= _MOST and (per_token >= _FEWEST or reported <= _TEMPLATE)


def _warnings(told: Sequence[Prompt]) -> list[str]:
    """Warnings about prompts whose reported numbers of tokens do not fit; empty if all fit."""
    odd = [each for each in told if not _fits(each)]
    if not odd:
        return []
    first = odd[0]
    where = f"In {len(odd):,} of {counted(len(told), 'request')} with usage, the prompt's reported tokens do not fit"
    if first.tokens is not None:
        what = f"its {len(first.tokens):,} tokens (the first: {first.reported:,} reported)"
        return [f"{where} {what}: is the tokenizer the model's own, and the prompt whole?"]
    what = f"its text (the first: {first.reported:,} for {len(first.text):,} characters)"
    return [f"{where} {what}: is the prompt whole, and usage of this request only? The lengths are those of the text."]


def text_of(value: object) -> str:
    """Convert a message's content, or another part of a request, to text; equal parts give equal text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
