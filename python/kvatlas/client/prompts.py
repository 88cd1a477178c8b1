"""Prompts of queries: tokens, content hashes, text or chat messages, checked before they are sent."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from kvatlas._native import content_hashes
from kvatlas.errors import InvalidArgumentError, InvalidTypeError
from kvatlas.tokenize import AnyTokenizer, AsyncTokenizer, Message, Tokenizer

# NumPy is imported where the first prompt is: the commands that start a process, and send none, do without.
if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Numbers: TypeAlias = "Sequence[int] | npt.NDArray[np.integer[Any]]"

_INPUTS = ("tokens", "content_hashes", "text", "messages")
_ONE_OF = f"{', '.join(f'{name}=' for name in _INPUTS[:-1])} or {_INPUTS[-1]}="


@dataclass(frozen=True)
class Length:
    """The length of a prompt, in tokens or in blocks."""

    tokens: int | None
    hashes: int | None = None

    def blocks(self, block_size: int) -> int:
        """The number of the prompt's whole blocks."""
        return (self.tokens or 0) // block_size if self.hashes is None else self.hashes


@dataclass(frozen=True)
class Query:
    """The prompt of a query: exactly one of tokens, content hashes, text and messages.

    Attributes:
        tokens: Token ids.
        content_hashes: Content hashes of the prompt's full blocks, from `kvatlas.content_hashes`.
        text: A completion's prompt; the client needs a tokenizer.
        messages: A chat in the form of requests; the client needs a tokenizer.
        tools: The tools offered in the chat.
        lora: The LoRA adapter that the prompt is for. Content hashes already include it.
        salt: The prompt's cache salt. Content hashes already include it.
    """

    tokens: Numbers | None = None
    content_hashes: Numbers | None = None
    text: str | None = None
    messages: Sequence[Message] | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    lora: str | None = None
    salt: str | None = None

    def check(self, name: str = "") -> None:
        """Check that exactly one form of prompt is given.

        Args:
            name: The query's name in messages, with a dot; empty for the arguments of a method.

        Raises:
            InvalidArgumentError: There is no prompt (code "missing_argument"), or too many arguments (code
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


@dataclass(frozen=True)
class Prompt:
    """A checked prompt that can be sent, as an array of numbers.

    Attributes:
        numbers: Token ids as uint32, or content hashes as uint64.
        is_hashed: True if the numbers are content hashes.
        length: The prompt's length.
        lora: The LoRA adapter; None if it is in the hashes.
        salt: The cache salt; None if it is in the hashes.
    """

    numbers: npt.NDArray[np.uint32] | npt.NDArray[np.uint64]
    is_hashed: bool
    length: Length
    lora: str | None = None
    salt: str | None = None

    @classmethod
    def of(cls, query: Query, name: str = "") -> Prompt:
        """Convert a query that `prepare` has returned to a prompt that can be sent.

        Raises:
            InvalidArgumentError: A number is out of range (code "out_of_range").
            InvalidTypeError: The prompt is not numbers, or the adapter or the salt is not a string.
        """
        import numpy as np  # noqa: PLC0415

        for each, text in (("lora", query.lora), ("salt", query.salt)):
            if text is not None and not isinstance(text, str):
                raise InvalidTypeError(f"{name}{each} must be a str, got {type(text).__name__}")
        if query.content_hashes is not None:
            hashes = _array(query.content_hashes, f"{name}content_hashes", -(1 << 63), (1 << 64) - 1)
            return cls(hashes.astype(np.uint64, copy=False), True, Length(None, len(hashes)))
        tokens = _array(() if query.tokens is None else query.tokens, f"{name}tokens", 0, (1 << 32) - 1)
        return cls(tokens.astype(np.uint32, copy=False), False, Length(len(tokens)), query.lora, query.salt)

    def hashed(self, block_size: int | None) -> Prompt:
        """The prompt in content hashes of its whole blocks; the prompt itself if the block size is unknown."""
        if block_size is None or self.is_hashed:
            return self
        return Prompt(content_hashes(self.numbers, block_size, self.lora, self.salt), True, self.length)

    @property
    def hashed_tokens(self) -> int | None:
        """The number of tokens that were hashed, which the hashes do not show; None for tokens, or if unknown."""
        return self.length.tokens if self.is_hashed else None

    def body(self) -> dict[str, Any]:
        """The fields of a JSON request for the prompt."""
        body: dict[str, Any] = {"content_hashes" if self.is_hashed else "token_ids": self.numbers.tolist()}
        if self.hashed_tokens is not None:
            body["prompt_tokens"] = self.hashed_tokens
        if self.lora is not None:
            body["lora_name"] = self.lora
        if self.salt is not None:
            body["cache_salt"] = self.salt
        return body

    def content(self) -> bytes:
        """The prompt's numbers as a request's body: 4 bytes a token or 8 a hash, little-endian on every machine."""
        return self.numbers.astype("<u8" if self.is_hashed else "<u4", copy=False).tobytes()


def prepare(query: Query, tokenizer: Tokenizer | None, name: str = "") -> Query:
    """Check a query, and tokenize its text or messages.

    Raises:
        InvalidArgumentError: There is not exactly one prompt, or no tokenizer (code "missing_argument").
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
    """Check and tokenize a query like `prepare`, for asyncio.

    An asynchronous tokenizer is awaited, others work in a thread.
    """
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


def _array(numbers: Numbers, name: str, low: int, high: int) -> npt.NDArray[np.integer[Any]]:
    """Convert numbers to a checked array: floats and bools are refused.

    A negative number gives its two's complement.
    """
    import numpy as np  # noqa: PLC0415

    if isinstance(numbers, np.ndarray):
        if numbers.dtype.kind not in "iu" or numbers.ndim != 1:
            raise InvalidTypeError(
                f"{name} must be a one-dimensional array of integers, got {numbers.dtype}, shape {numbers.shape}"
            )
        if numbers.size:
            _check_range(int(numbers.min()), int(numbers.max()), numbers, name, low, high)
        return numbers
    if isinstance(numbers, str | bytes) or not isinstance(numbers, Sequence):
        raise InvalidTypeError(f"{name} must be a list or an array of ints, got {type(numbers).__name__}")
    listed = list(numbers)
    if not set(map(type, listed)) <= {int}:
        # NumPy's integers are fine, too; bools are none.
        listed = [_int(number, f"{name}[{at}]") for at, number in enumerate(listed)]
    least = min(listed, default=low)
    _check_range(least, max(listed, default=low), listed, name, low, high)
    if least < 0:
        listed = [number & ((1 << 64) - 1) for number in listed]
    return np.array(listed, np.uint64)


def _check_range(
    least: int, most: int, numbers: Sequence[int] | npt.NDArray[Any], name: str, low: int, high: int
) -> None:
    if least < low or most > high:
        at, wrong = next((at, int(number)) for at, number in enumerate(numbers) if not low <= int(number) <= high)
        raise InvalidArgumentError(f"{name}[{at}] must be from {low} to {high}, got {wrong}", "out_of_range")


def _int(number: object, name: str) -> int:
    import numpy as np  # noqa: PLC0415

    if isinstance(number, bool | np.bool_) or not isinstance(number, int | np.integer):
        raise InvalidTypeError(f"{name} must be an int, got {type(number).__name__}")
    return int(number)
