"""A prefix table in plain Python: what each pod said, and nothing derived. Without limits and ages."""

from dataclasses import dataclass, field

import numpy as np
import xxhash

from kvatlas.trees import AllBlocksCleared, BlockRemoved, BlockStored

Prefix = bytes
"""All bytes up to the end of a block: what a prefix hash stands for."""


@dataclass
class Meaning:
    prefixes: list[Prefix]
    copies: int


@dataclass
class Pod:
    names: dict[int | bytes, Meaning] = field(default_factory=dict)
    added: set[Prefix] = field(default_factory=set)

    def announced(self, prefix: Prefix) -> bool:
        return any(prefix in meaning.prefixes for meaning in self.names.values())

    def holds(self, prefix: Prefix) -> bool:
        return prefix in self.added or self.announced(prefix)


class PrefixTableModel:
    """A prefix table that remembers what each pod said: see the module's text."""

    def __init__(self, block_size: int, seed: int) -> None:
        self.block_size, self.seed = block_size, seed
        self.pods: dict[tuple[str, int], dict[str, Pod]] = {}
        self.hashed: dict[int, Prefix] = {}

    def pod(self, model: str, lora_id: int, pod: str) -> Pod:
        return self.pods.setdefault((model, lora_id), {}).setdefault(pod, Pod())

    def prefixes(self, tokens: bytes, before: Prefix = b"") -> list[Prefix]:
        ends = range(self.block_size, len(tokens) + 1, self.block_size)
        return [before + tokens[:end] for end in ends]

    def hashes(self, tokens: bytes) -> list[int]:
        """Straight from the contract; remembers what they stand for."""
        found, parent = [], self.seed
        for prefix in self.prefixes(tokens):
            block = prefix[-self.block_size :]
            parent = xxhash.xxh64_intdigest(parent.to_bytes(8, "little") + block, self.seed)
            self.hashed[parent] = prefix
            found.append(parent)
        return found

    def stored(self, event: BlockStored) -> int:
        pod = self.pod(event.model_name, event.lora_id, event.source_pod)
        before = b""
        if event.parent_block_hash is not None:
            if event.parent_block_hash not in pod.names:
                return 0
            before = pod.names[event.parent_block_hash].prefixes[-1]
        for name, tokens in zip(event.block_hashes, event.tokens, strict=True):
            prefixes = self.prefixes(bytes(tokens), before)
            before = prefixes[-1]
            known = pod.names.get(name)
            if known and known.prefixes == prefixes:
                known.copies += 1
            else:
                pod.names[name] = Meaning(prefixes, 1)
        return len(event.tokens)

    def removed(self, event: BlockRemoved) -> None:
        pod = self.pod(event.model_name, event.lora_id, event.source_pod)
        for name in event.block_hashes:
            meaning = pod.names.get(name)
            if meaning is None:
                continue
            meaning.copies -= 1
            if meaning.copies == 0:
                del pod.names[name]
                pod.added -= {prefix for prefix in meaning.prefixes if not pod.announced(prefix)}

    def cleared(self, event: AllBlocksCleared) -> None:
        for (model, lora_id), pods in self.pods.items():
            if event.model_name is None or (event.model_name, event.lora_id) == (model, lora_id):
                pods.pop(event.source_pod, None)

    def add(self, model: str, lora_id: int, pod: str, hashes: "np.ndarray[tuple[int], np.dtype[np.uint64]]") -> None:
        self.pod(model, lora_id, pod).added |= {self.hashed[hash_] for hash_ in hashes.tolist()}

    def match(self, model: str, lora_id: int, tokens: bytes, ready: list[str] | None) -> dict[str, int]:
        prefixes = self.prefixes(tokens)
        percents = {}
        for name, pod in self.pods.get((model, lora_id), {}).items():
            depth = 0
            while depth < len(prefixes) and pod.holds(prefixes[depth]):
                depth += 1
            if depth and (ready is None or name in ready):
                percents[name] = max(1, depth * 100 // len(prefixes))
        return percents

    def entries(self) -> int:
        """The number of prefixes that anybody holds."""
        return sum(
            len({p for pod in pods.values() for p in pod.added.union(*(m.prefixes for m in pod.names.values()))})
            for pods in self.pods.values()
        )
