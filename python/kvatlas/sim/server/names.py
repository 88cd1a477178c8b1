"""Block hashes (names of blocks) as vLLM and SGLang compute them.

A block hash covers the tokens of its block and of all blocks before it, the LoRA adapter and the cache salt, so blocks
that must not be shared never have equal hashes. Block hashes are integers here, the keys of a block pool; `wire`
converts them to their form in events.

- vLLM: SHA-256 of (parent digest, tokens, extra keys), as canonical CBOR (`sha256_cbor`) or as Python pickles it
  (`sha256`, its default). The root is the SHA-256 of a seed string, the salt is an extra key of the first block,
  the adapter one of every block. Sent as the last 8 bytes, unsigned, or whole.
- SGLang: SHA-256 of the parent digest and the tokens as little-endian uint32. A salt gives the chain another root; an
  adapter's namespace is mixed into each name afterwards. Sent as the first 8 bytes, signed.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import sha256
from itertools import pairwise
from pickle import dumps
from typing import Literal, Protocol

HashAlgorithm = Literal["sha256", "sha256_cbor"]
"""Hash function of vLLM's block hashes: vLLM's option --prefix-caching-hash-algo."""

DEFAULT_SEED = "vllm-none-hash"
"""Default seed of the root of vLLM's block hashes; engines with the same seed compute equal hashes."""

_SALT = b"sglang-cache-salt-v1\0"
_NAMESPACE = b"sglang-kv-event-namespace-v1"


class Names(Protocol):
    """Computation of block hashes in the manner of one engine."""

    def chain(self, tokens: Sequence[int], block_size: int, lora: str | None, salt: str | None) -> list[int]:
        """Compute the names (block hashes) of all full blocks of `tokens`, in order."""

    def wire(self, name: int) -> int | bytes:
        """Convert a name (block hash) to its form in events."""


class VllmNames:
    """Computation of block hashes as in vLLM: a name is the whole digest as a big-endian integer."""

    def __init__(
        self, seed: str | None = None, *, as_bytes: bool = False, algorithm: HashAlgorithm = "sha256_cbor"
    ) -> None:
        seed = DEFAULT_SEED if seed is None else seed
        self._pickles = algorithm == "sha256"
        self._root = sha256(dumps(seed, 5) if self._pickles else _cbor_text(seed)).digest()
        self._as_bytes = as_bytes

    def chain(self, tokens: Sequence[int], block_size: int, lora: str | None, salt: str | None) -> list[int]:
        if self._pickles:
            return self._pickled_chain(tokens, block_size, lora, salt)
        adapter = [_cbor_texts("lora", lora, lora_path(lora))] if lora else []
        first = [*adapter, _cbor_texts("cache_salt", salt)] if salt else adapter
        rest_extra = _cbor_array(adapter) if adapter else b"\xf6"
        extra = _cbor_array(first) if first else b"\xf6"
        head = _cbor_head(0x80, block_size)
        number = _NUMBERS.__getitem__
        digest, names = self._root, []
        for start, end in pairwise(range(0, len(tokens) + 1, block_size)):
            body = b"".join(map(number, tokens[start:end]))
            digest = sha256(b"\x83\x58\x20" + digest + head + body + extra).digest()
            names.append(int.from_bytes(digest))
            extra = rest_extra
        return names

    def _pickled_chain(self, tokens: Sequence[int], block_size: int, lora: str | None, salt: str | None) -> list[int]:
        adapter = (("lora", lora, lora_path(lora)),) if lora else ()
        extra = (*adapter, ("cache_salt", salt)) if salt else adapter
        digest, names = self._root, []
        for start, end in pairwise(range(0, len(tokens) + 1, block_size)):
            digest = sha256(dumps((digest, tuple(tokens[start:end]), extra or None), 5)).digest()
            names.append(int.from_bytes(digest))
            extra = adapter
        return names

    def wire(self, name: int) -> int | bytes:
        return name.to_bytes(32) if self._as_bytes else name & 0xFFFF_FFFF_FFFF_FFFF


class SglangNames:
    """Computation of block hashes as in SGLang: a name is the signed integer in the events.

    SGLang has no seed. Here `seed` gives an engine different block hashes from other engines, as another namespace
    would.
    """

    def __init__(self, seed: str | None = None) -> None:
        self._seed = seed

    def chain(self, tokens: Sequence[int], block_size: int, lora: str | None, salt: str | None) -> list[int]:
        prior = sha256(_SALT + salt.encode()).digest() if salt else b""
        namespace = self._namespace(lora)
        data = struct.pack(f"<{len(tokens)}I", *tokens)
        names = []
        for start, end in pairwise(range(0, len(data) + 1, 4 * block_size)):
            prior = sha256(prior + data[start:end]).digest()
            name = prior[:8]
            if namespace:
                name = sha256(namespace + name).digest()[:8]
            names.append(int.from_bytes(name, signed=True))
        return names

    def wire(self, name: int) -> int | bytes:
        return name

    def _namespace(self, lora: str | None) -> bytes:
        key = "".join(filter(None, (self._seed and f"{self._seed}/", lora and lora_id(lora)))).encode()
        return sha256(_NAMESPACE + b"\x01" + struct.pack("<Q", len(key)) + key + b"\x00").digest() if key else b""


def lora_path(lora: str) -> str:
    """Path of a LoRA adapter on the engine's disk, part of vLLM's block hashes."""
    return f"/adapters/{lora}"


def lora_id(lora: str) -> str:
    """Internal id of a LoRA adapter in SGLang, part of its block hashes. Real ids are random."""
    return sha256(lora.encode()).hexdigest()[:32]


def _cbor_head(major: int, value: int) -> bytes:
    """Head of a CBOR item: the major type (high bits) and a length or number, in the fewest bytes."""
    if value < 24:
        return bytes((major | value,))
    for more, size in enumerate((1, 2, 4, 8)):
        if value < 1 << 8 * size:
            return bytes((major | 24 + more,)) + value.to_bytes(size)
    raise ValueError(f"{value} has more than 64 bits")


class _Numbers(dict[int, bytes]):
    """Cache of unsigned integers encoded in CBOR, as token ids repeat often."""

    def __missing__(self, value: int) -> bytes:
        made = _cbor_head(0x00, value)
        if len(self) < 1 << 20:
            self[value] = made
        return made


_NUMBERS = _Numbers()


def _cbor_text(text: str) -> bytes:
    data = text.encode()
    return _cbor_head(0x60, len(data)) + data


def _cbor_array(items: Sequence[bytes]) -> bytes:
    return _cbor_head(0x80, len(items)) + b"".join(items)


def _cbor_texts(*texts: str) -> bytes:
    return _cbor_array([_cbor_text(text) for text in texts])
