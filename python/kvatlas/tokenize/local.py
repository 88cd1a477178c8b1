"""Tokenizer that runs in this process, from the files of a model on the Hugging Face Hub."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from kvatlas.errors import InvalidTypeError, MissingExtraError, TokenizerError
from kvatlas.tokenize.protocol import Message
from kvatlas.tokenize.template import ChatTemplate

if TYPE_CHECKING:
    from types import ModuleType

_FILE = "tokenizer.json"
_CONFIG = "tokenizer_config.json"
_SPECIAL_MAP = "special_tokens_map.json"
_TEMPLATE = "chat_template.jinja"
_TEMPLATE_JSON = "chat_template.json"
_MORE_TEMPLATES = "additional_chat_templates"
_DEFAULT, _WITH_TOOLS = "default", "tool_use"
_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)


class LocalTokenizer:
    """Tokenizer that computes the same token ids as vLLM and SGLang, with the model's chat template.

    Special tokens are added to the prompt of a completion. They are not added to a chat, whose template writes them.
    Threads may share a tokenizer.
    """

    def __init__(self, path: str | Path, *, chat_template: str | None = None) -> None:
        """Read a tokenizer from its files.

        Args:
            path: A directory with a model's `tokenizer.json`, or that file. The chat template and the names of special
                tokens are read from `chat_template.jinja` and `tokenizer_config.json` beside it.
            chat_template: A chat template to use instead of the model's.

        Raises:
            MissingExtraError: The Python package tokenizers is not installed.
            TokenizerError: A file is missing or cannot be read (code "bad_tokenizer").
        """
        tokenizers = _tokenizers()
        path = Path(path)
        file = path / _FILE if path.is_dir() else path
        if not file.is_file():
            raise _bad(f"there is no {file}: a tokenizer is a {_FILE}, or a directory that has one")
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the package raises bare Exceptions
            raise _bad(f"cannot read {file}: {_first_line(error)}") from error
        # Truncation and padding are up to engines.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.path = file
        config = _read_json(file.parent / _CONFIG)
        special = _special_tokens(_read_json(file.parent / _SPECIAL_MAP) | config)
        sources = _templates(file.parent, config) if chat_template is None else {_DEFAULT: chat_template}
        self._sources, self._special = sources, special
        self._templates: dict[str, ChatTemplate] = {}

    @classmethod
    def from_hub(cls, name: str, *, revision: str | None = None, chat_template: str | None = None) -> Self:
        """Read the tokenizer of a model on the Hugging Face Hub; its files are downloaded unless already cached.

        Args:
            name: Name of the model, for example `Qwen/Qwen3-8B`.
            revision: A branch, tag or commit; default: the main branch.
            chat_template: A chat template to use instead of the model's.

        Raises:
            MissingExtraError: The Python package tokenizers is not installed.
            TokenizerError: The Hub does not have the model, or cannot be reached (code "bad_tokenizer").
        """
        _tokenizers()
        from huggingface_hub import snapshot_download  # noqa: PLC0415 - tokenizers brings it

        if not _HUB_NAME.fullmatch(name):
            raise _bad(f"{name!r} is neither a path nor the name of a model on the Hugging Face hub")
        files = [_FILE, _CONFIG, _SPECIAL_MAP, _TEMPLATE, _TEMPLATE_JSON, f"{_MORE_TEMPLATES}/*"]
        try:
            directory = snapshot_download(name, revision=revision, allow_patterns=files)
        except Exception as error:  # of its HTTP client, its own, the system's
            raise _bad(f"cannot load {name} from the Hugging Face hub: {_first_line(error)}") from error
        return cls(directory, chat_template=chat_template)

    def encode(self, text: str, /, *, add_special_tokens: bool = True) -> list[int]:
        """Compute the token ids of a completion's prompt.

        Args:
            text: Text of the prompt.
            add_special_tokens: True to add special tokens, as engines do by default.

        Raises:
            InvalidTypeError: The text is not a string.
        """
        if not isinstance(text, str):
            raise InvalidTypeError(f"text must be a str, got {type(text).__name__}")
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def encode_chat(
        self,
        messages: Sequence[Message],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Compute the token ids of a chat.

        Args:
            messages: The messages, in the format of a chat request.
            tools: The tools offered to the model, in the format of a chat request.
            documents: Documents, for chat templates that use them.
            add_generation_prompt: True to end with the beginning of the assistant's answer, as chat requests do.
            template_kwargs: More variables for the chat template, as in `chat_template_kwargs` of requests.

        Raises:
            InvalidArgumentError: The chat template refuses the messages (code "invalid_messages").
            MissingExtraError: The Python package jinja2 is not installed.
            TokenizerError: The model has no chat template (code "no_chat_template"), or an invalid one (code
                "bad_chat_template").
        """
        text = self.chat_template(with_tools=bool(tools)).render(
            messages,
            tools=tools,
            documents=documents,
            add_generation_prompt=add_generation_prompt,
            template_kwargs=template_kwargs,
        )
        return self.encode(text, add_special_tokens=False)

    def chat_template(self, *, with_tools: bool = False) -> ChatTemplate:
        """Return the model's chat template.

        With `with_tools`, the result is the model's separate template for tools, if it has one.

        Raises:
            MissingExtraError: The Python package jinja2 is not installed.
            TokenizerError: The model has no chat template (code "no_chat_template"), or an invalid one (code
                "bad_chat_template").
        """
        name = _WITH_TOOLS if with_tools and _WITH_TOOLS in self._sources else _DEFAULT
        if name not in self._sources:
            there = f"only ones named {', '.join(self._sources)}" if self._sources else "none"
            raise TokenizerError(
                f"{self.path.parent} has no chat template: {_TEMPLATE} and {_CONFIG} have {there}; give chat_template=",
                "no_chat_template",
            )
        if name not in self._templates:
            self._templates[name] = ChatTemplate(self._sources[name], self._special)
        return self._templates[name]


def _tokenizers() -> ModuleType:
    try:
        import tokenizers  # noqa: PLC0415 - an extra
    except ImportError as error:
        words = "a local tokenizer needs the package tokenizers: pip install 'kvatlas[tokenizer]'"
        raise MissingExtraError(words) from error
    module: ModuleType = tokenizers
    return module


def _templates(directory: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Chat templates by name, found as transformers does: separate files have priority over the configuration."""
    found: dict[str, str] = {}
    given = config.get("chat_template", _read_json(directory / _TEMPLATE_JSON).get("chat_template"))
    if isinstance(given, str):
        found[_DEFAULT] = given
    elif isinstance(given, list):
        for each in given:
            if isinstance(each, Mapping) and isinstance(each.get("template"), str):
                found[str(each.get("name"))] = each["template"]
    for file in sorted((directory / _MORE_TEMPLATES).glob("*.jinja")):
        found[file.stem] = _read(file)
    if (directory / _TEMPLATE).is_file():
        found[_DEFAULT] = _read(directory / _TEMPLATE)
    return found


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Special tokens by their names in chat templates: `bos_token` and so on."""
    found: dict[str, str] = {}
    for name in _SPECIAL:
        token = config.get(name)
        if isinstance(token, Mapping):  # an added token, with its properties
            token = token.get("content")
        if isinstance(token, str):
            found[name] = token
    return found


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _bad(f"cannot read {file}: {getattr(error, 'strerror', None) or error}") from error


def _read_json(file: Path) -> dict[str, Any]:
    """Read the JSON object in a file; an empty object if the file is missing."""
    if not file.exists():
        return {}
    try:
        content = json.loads(_read(file))
    except (ValueError, RecursionError) as error:
        raise _bad(f"{file} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise _bad(f"{file} must be a JSON object, got {type(content).__name__}")
    return content


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _bad(message: str) -> TokenizerError:
    return TokenizerError(message, "bad_tokenizer")
