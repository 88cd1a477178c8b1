"""Requests to the route `/tokenize` of an engine, and the token ids in its answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import httpx

from kvatlas._http import failure
from kvatlas.errors import InvalidTypeError, TokenizerError

PATH = "/tokenize"
HEADERS = {"Accept-Encoding": "identity"}
"""Headers that ask for an uncompressed answer, because the size of a decompressed answer has no bound."""

_MOST = 16 << 20  # bytes of an answer: the tokens of a long prompt take some of them


class Body:
    """Body of an HTTP answer, read piece by piece."""

    def __init__(self, answer: httpx.Response) -> None:
        self._answer = answer
        self._pieces = bytearray()

    def add(self, piece: bytes) -> None:
        """Add the next piece of the body.

        Raises:
            TokenizerError: The body is too long.
        """
        self._pieces += piece
        if len(self._pieces) > _MOST:
            url = self._answer.request.url
            raise TokenizerError(f"{url} returned more than {_MOST >> 20} MiB", "bad_answer")

    def whole(self) -> httpx.Response:
        """Return the answer with its body. A compressed body is not unpacked, and is therefore refused."""
        answer = self._answer
        return httpx.Response(answer.status_code, content=bytes(self._pieces), request=answer.request)


def prompt(text: str, model: str | None, *, add_special_tokens: bool) -> dict[str, Any]:
    """Create the body of a request for the token ids of a completion's prompt."""
    if not isinstance(text, str):
        raise InvalidTypeError(f"text must be a str, got {type(text).__name__}")
    return _with_model({"prompt": text, "add_special_tokens": add_special_tokens}, model)


def chat(
    messages: Sequence[Mapping[str, Any]],
    model: str | None,
    *,
    tools: Sequence[Mapping[str, Any]] | None,
    add_generation_prompt: bool,
    template_kwargs: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Create the body of a request for the token ids of a chat."""
    if not isinstance(messages, list | tuple):
        raise InvalidTypeError(f"messages must be a list of objects, got {type(messages).__name__}")
    body: dict[str, Any] = {"messages": list(messages), "add_generation_prompt": add_generation_prompt}
    if tools:
        body["tools"] = list(tools)
    if template_kwargs:
        body["chat_template_kwargs"] = dict(template_kwargs)
    return _with_model(body, model)


def tokens(answer: httpx.Response) -> list[int]:
    """Parse the token ids in an engine's answer.

    Raises:
        TokenizerError: The engine refused the request, or the answer has no token ids.
    """
    url, status = answer.request.url, answer.status_code
    if status == httpx.codes.NOT_FOUND and "model" not in answer.text:
        raise TokenizerError(f"{url} does not exist: is this the address of a vLLM or SGLang server?", "http_404")
    if not answer.is_success:
        said = " ".join(answer.text.split())[:300] or answer.reason_phrase
        raise TokenizerError(f"{url} returned status {status}: {said}", f"http_{status}")
    try:
        found = answer.json()["tokens"]
        if isinstance(found, list) and all(type(token) is int for token in found):
            return found
    except (ValueError, LookupError, TypeError, RecursionError):
        pass
    raise TokenizerError(f"{url} returned an answer without a list of tokens: {answer.text[:100]!r}", "bad_answer")


@contextmanager
def errors(url: str, *, closed: bool) -> Iterator[None]:
    """Context manager that turns errors of httpx into errors of kvatlas."""
    if closed:
        raise TokenizerError(f"the tokenizer for {url} is closed", "closed")
    try:
        yield
    except httpx.HTTPError as error:
        code, words = failure(error)
        raise TokenizerError(f"engine {url} {words}", code) from error


def _with_model(body: dict[str, Any], model: str | None) -> dict[str, Any]:
    return body if model is None else {"model": model} | body
