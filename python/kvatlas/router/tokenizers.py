"""Resolution of a tokenizer setting: a path, or a model on the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from kvatlas.errors import TokenizerError
from kvatlas.tokenize import LocalTokenizer

ENGINE = "engine"
NONE = "none"


def resolve(tokenizer: str) -> str | None:
    """Tokenizer in the form of the native router: a path, `engine`, or None for a router without tokens.

    Raises:
        TokenizerError: Neither a file nor a model on the hub has this name, or the hub cannot be reached.
        MissingExtraError: The name is a model on the hub, and the package tokenizers is not installed.
    """
    if tokenizer == NONE:
        return None
    if tokenizer == ENGINE:
        return ENGINE
    path = Path(tokenizer).expanduser()
    if path.exists():
        return str(path.resolve())
    if tokenizer.startswith(("/", "./", "../", "~")) or path.suffix == ".json":
        raise TokenizerError(f"there is no {tokenizer}: a tokenizer is a tokenizer.json, or a directory that has one")
    return str(LocalTokenizer.from_hub(tokenizer).path.parent)
