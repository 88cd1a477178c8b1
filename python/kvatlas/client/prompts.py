"""The prompt of a query: tokens, content hashes, text or chat messages, checked before they are sent."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from kvatlas.errors import InvalidArgumentError, InvalidTypeError
from kvatlas.tokenize import AnyTokenizer, AsyncTokenizer, Message, Tokenizer

Numbers: TypeAlias = Sequence[int] | npt.NDArray[np.integer[Any]]

_INPUTS = ("tokens", "content_hashes", "text", "messages")
_ONE_OF = f"{', '.join(f'{name}=' for name in _INPUTS[:-1])} or {_INPUTS[-1]}="


@dataclass(frozen=True)
class Length:
    """How long a prompt is."""

    tokens: int | None
    hashes: int | None = None

    def blocks(self, block_size: int) -> int:
        """Its whole blocks."""
        return (self.tokens or 0) // block_size if self.hashes is None else self.hashes


@dataclass(frozen=True)
class Query:
    """The prompt of a query: exactly one of tokens, content hashes, text and messages.

    Attributes:
        tokens: Token ids.
        content_hashes: Those of the prompt's blocks, which `kvatlas.content_hashes` makes.
        text: A completion's prompt; the client needs a tokenizer.
        messages: A chat, as requests have it; the client needs a tokenizer.
        tools: The tools offered in the chat.
        lora: The LoRA adapter that the prompt is for. Content hashes have it in them already.
        salt: Its cache salt. Content hashes have it in them already.
    """

    tokens: Numbers | None = None
    content_hashes: Numbers | None = None
    text: str | None = None
    messages: Sequence[Message] | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    lora: str | None = None
    salt: str | None = None

    def check(self, name: str = "") -> None:
        """Check that it is one prompt.

        Args:
            name: What it is called in messages, with a dot; empty for the arguments of a method.

        Raises:
            InvalidArgumentError: There is no input (code "missing_argument"), or too many arguments (code
                "conflicting_arguments").
        """
        given = [each for each in _INPUTS if getattr(self, each) is not None]
        subject = f"{name.rstrip('.')} must have" if name else "a query needs"
        if not given:
            raise InvalidArgumentError(f"{subject} one of {_ONE_OF}, got none", "missing_argument")
        if len(given) > 1:
            words = f"{subject} one of {_ONE_OF}, got {' and '.join(f'{each}=' for each in given)}"
            raise InvalidArgumentError(words, "conflicting_arguments")
        if given == ["content_hashes"]:
            for each in ("lora", "salt"):
                if getattr(self, each) is not None:
                    words = f"{name}{each} does not go with content hashes, which are made with it"
                    raise InvalidArgumentError(words, "conflicting_arguments")
        if self.tools is not None and given != ["messages"]:
            raise InvalidArgumentError(f"{name}tools can only be used with messages", "conflicting_arguments")

    def body(self, name: str = "") -> dict[str, Any]:
        """Its fields of a request; `check` and a tokenizer come first."""
        body: dict[str, Any] = {}
        if self.tokens is not None:
            body["token_ids"] = _list(self.tokens, f"{name}tokens", 0, (1 << 32) - 1)
        elif self.content_hashes is not None:
            body["content_hashes"] = _list(self.content_hashes, f"{name}content_hashes", -(1 << 63), (1 << 64) - 1)
        if self.lora is not None:
            body["lora_name"] = self.lora
        if self.salt is not None:
            body["cache_salt"] = self.salt
        return body

    def length(self) -> Length:
        """How long it is. `body` comes first: it refuses what has no length."""
        if self.content_hashes is not None:
            return Length(None, len(self.content_hashes))
        return Length(0 if self.tokens is None else len(self.tokens))


def prepare(query: Query, tokenizer: Tokenizer | None, name: str = "") -> Query:
    """The query, checked, with tokens instead of text or messages.

    Raises:
        InvalidArgumentError: It is not one prompt, or there is no tokenizer (code "missing_argument").
        TokenizerError: The tokenizer failed.
    """
    query.check(name)
    if query.text is None and query.messages is None:
        return query
    tokenizer = _needed(tokenizer, name)
    if inspect.iscoroutinefunction(tokenizer.encode):
        raise InvalidTypeError("this client needs a tokenizer that is not asynchronous, such as EngineTokenizer")
    if query.text is not None:
        return _with_tokens(query, tokenizer.encode(query.text))
    return _with_tokens(query, tokenizer.encode_chat(query.messages or (), tools=query.tools))


async def prepare_async(query: Query, tokenizer: AnyTokenizer | None, name: str = "") -> Query:
    """The same for asyncio: an asynchronous tokenizer is awaited, another one works in a thread."""
    query.check(name)
    if query.text is None and query.messages is None:
        return query
    tokenizer = _needed(tokenizer, name)
    if not inspect.iscoroutinefunction(tokenizer.encode):
        return await asyncio.to_thread(prepare, query, cast("Tokenizer", tokenizer), name)
    awaited = cast("AsyncTokenizer", tokenizer)
    if query.text is not None:
        return _with_tokens(query, await awaited.encode(query.text))
    return _with_tokens(query, await awaited.encode_chat(query.messages or (), tools=query.tools))


def _needed(tokenizer: Any, name: str) -> Any:
    if tokenizer is None:
        words = (
            f"{name}text and {name}messages need a tokenizer: give the client "
            "tokenizer=LocalTokenizer(PATH) or EngineTokenizer(URL) of kvatlas.tokenize"
        )
        raise InvalidArgumentError(words, "missing_argument")
    return tokenizer


def _with_tokens(query: Query, tokens: Sequence[int]) -> Query:
    return dataclasses.replace(query, tokens=tokens, text=None, messages=None, tools=None)


def _list(numbers: Numbers, name: str, low: int, high: int) -> list[int]:
    """The numbers as JSON takes them, checked here: a float or a bool would be refused there in other words."""
    if isinstance(numbers, np.ndarray):
        if numbers.dtype.kind not in "iu" or numbers.ndim != 1:
            raise InvalidTypeError(
                f"{name} must be a one-dimensional array of integers, got {numbers.dtype}, shape {numbers.shape}"
            )
        listed: list[int] = numbers.tolist()
    elif isinstance(numbers, str | bytes) or not isinstance(numbers, Sequence):
        raise InvalidTypeError(f"{name} must be a list or an array of ints, got {type(numbers).__name__}")
    else:
        listed = list(numbers)
        if not all(type(number) is int for number in listed):
            # NumPy's integers are fine, too; bools are none.
            listed = [_int(number, f"{name}[{at}]") for at, number in enumerate(listed)]
    if listed and (min(listed) < low or max(listed) > high):
        at, wrong = next((at, number) for at, number in enumerate(listed) if not low <= number <= high)
        raise InvalidArgumentError(f"{name}[{at}] must be from {low} to {high}, got {wrong}", "out_of_range")
    return listed


def _int(number: object, name: str) -> int:
    if isinstance(number, bool | np.bool_) or not isinstance(number, int | np.integer):
        raise InvalidTypeError(f"{name} must be an int, got {type(number).__name__}")
    return int(number)
