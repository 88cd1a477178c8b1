"""Reader of the text log of a vLLM server that logs requests.

`--enable-log-requests` logs the arrival of requests. Their prompts are in the log at level DEBUG
(`VLLM_LOGGING_LEVEL`), or, before version 0.11, in the same line; answers are in it with `--enable-log-outputs`. Times
have no year and no fractions of a second.
"""

from __future__ import annotations

import ast
import datetime as dt
import re
from collections.abc import Iterable, Sequence

from kvatlas._text import count
from kvatlas.errors import TraceError
from kvatlas.lab.traffic.source import BadRows, Conversion, Traffic, make_trace
from kvatlas.lab.traffic.text import Prompt, cut_prompts

_BLOCK = 64  # tokens
_WHEN = re.compile(r"\b(?:\d{4}-)?(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)\b")
_RECEIVED = re.compile(r"Received request (\S+?): ")
_DETAILS = re.compile(r"Request (\S+) details: ")
_GENERATED = re.compile(r"Generated response (\S+?)(?: \(([a-z ]+)\))?: output: ")
_PROMPT = re.compile(r"""prompt: ('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""")  # as Python writes strings
_IDS = re.compile(r"prompt_token_ids: \[([\d, ]*)\]")
_ANSWER_IDS = re.compile(r"output_token_ids: (?:\[([\d, ]*)\]|None)")
_HALF_A_YEAR = 183 * 86_400


def is_log(line: str) -> bool:
    """True if `line` belongs to a vLLM log."""
    return _RECEIVED.search(line) is not None or _DETAILS.search(line) is not None


def read_log(lines: Iterable[str], how: Conversion, *, name: str, where: str) -> Traffic:
    """Read a vLLM log from lines. Raises `TraceError`."""
    bad = BadRows(where, how.skip_bad)
    prompts: dict[str, Prompt] = {}
    arrived: set[str] = set()
    years, last = 0, 0.0
    for number, line in enumerate(lines, 1):
        received, details, generated = _RECEIVED.search(line), _DETAILS.search(line), _GENERATED.search(line)
        found = received or details or generated
        if found is None:
            continue
        when = _WHEN.search(line)
        if when is None:
            bad.add(number, TraceError("no date and time"))
            continue
        month, day, hour, minute, second = map(int, when.groups())
        try:
            at = dt.datetime(2000, month, day, hour, minute, second, tzinfo=dt.UTC).timestamp()
        except ValueError:
            bad.add(number, TraceError(f"{when[0]!r} is no date and time"))
            continue
        if at + years * 366 * 86_400 < last - _HALF_A_YEAR:
            years += 1
        last = at + years * 366 * 86_400
        request = prompts.setdefault(found[1], Prompt(last))
        if generated is not None:
            _add_answer(request, line, generated[2])
            continue
        arrived.add(found[1])
        try:
            _add_prompt(request, line, how)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            bad.add(number, TraceError("the prompt cannot be read: was it cut by --max-log-len?"))
    known = [prompts[each] for each in prompts if each in arrived]
    whole = [each for each in known if each.tokens or each.text]
    if known and not whole:
        raise TraceError(
            f"{where} has {len(known):,} requests and no prompt: vLLM logs prompts with --enable-log-requests at "
            "VLLM_LOGGING_LEVEL=DEBUG"
        )
    cut = cut_prompts(whole, how.block or _BLOCK)
    trace = make_trace(cut.rows, name, how.block or _BLOCK, where, bad)
    if len(known) > len(whole):
        cut.assumptions.append(f"{count(len(known) - len(whole))} requests without a prompt were left out.")
    return Traffic(trace, "vllm", cut.assumptions, cut.warnings)


def _add_prompt(request: Prompt, line: str, how: Conversion) -> None:
    if (ids := _IDS.search(line)) is not None and ids[1].strip():
        request.tokens = _numbers(ids[1])
    elif (text := _PROMPT.search(line)) is not None:
        request.text = str(ast.literal_eval(text[1]))
        if how.encode is not None:
            request.tokens = how.encode(request.text)
    elif "prompt: '" in line or 'prompt: "' in line:
        raise ValueError(line[:80])


def _add_answer(request: Prompt, line: str, kind: str | None) -> None:
    ids = _ANSWER_IDS.search(line)
    tokens = len(_numbers(ids[1])) if ids is not None and ids[1] else 0
    if not tokens:
        return
    # Streamed answers are logged piece by piece, then as a whole.
    request.output = (request.output or 0) + tokens if kind == "streaming delta" else max(request.output or 0, tokens)


def _numbers(text: str) -> Sequence[int]:
    return [int(each) for each in text.split(",") if each.strip()]
