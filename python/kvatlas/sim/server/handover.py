"""Computed prompts that a prefill engine keeps until a decode engine fetches them.

vLLM's and SGLang's protocols are supported. In vLLM's, the prefill engine is asked first; its answer has the address of
the blocks (`kv_transfer_params`), and the decode engine fetches them. In SGLang's, both engines are asked at once with
the same `bootstrap_room`, and the decode engine waits until the prompt is computed. The simulation has no KV data, so
only the number of tokens is fetched, from the prefill engine's own HTTP port.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field

KEPT = 60.0
"""Seconds for which a computed prompt is kept to be fetched, and for which a decode engine waits for a prompt."""
_MOST = 10_000  # prompts kept


@dataclass(slots=True)
class PrefillWork:
    """Prompt of `tokens` tokens that is or was computed for another engine. `done` is set when it is computed."""

    tokens: int
    done: asyncio.Event = field(default_factory=asyncio.Event)


class Handover:
    """Prompts computed for other engines, by the name under which another engine fetches each."""

    def __init__(self) -> None:
        self._kept: dict[str, PrefillWork] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def begin(self, tokens: int, name: str | None = None) -> str:
        """Record the start of the computation of a prompt of `tokens` tokens.

        Returns the prompt's name: `name`, or a new random one.
        """
        name = secrets.token_hex(8) if name is None else name
        while len(self._kept) >= _MOST:
            del self._kept[next(iter(self._kept))]
        self._kept[name] = PrefillWork(tokens)
        return name

    def drop(self, name: str) -> None:
        """Drop a prompt that no engine will fetch."""
        self._kept.pop(name, None)

    def keep(self, name: str) -> None:
        """Record that a prompt is computed; engines can fetch it within the next `KEPT` seconds."""
        if (kept := self._kept.get(name)) is not None:
            kept.done.set()
            asyncio.get_running_loop().call_later(KEPT, self._expire, name, kept)

    async def fetch(self, name: str, patience: float) -> int | None:
        """Wait for a prompt, remove it, and return its number of tokens.

        Returns None if the prompt is not ready in `patience` seconds.
        """
        deadline = asyncio.get_running_loop().time() + patience
        while (kept := self._kept.get(name)) is None:
            # With SGLang, the request that begins the prompt may still be under way.
            if asyncio.get_running_loop().time() > deadline:
                return None
            await asyncio.sleep(0.005)
        try:
            async with asyncio.timeout_at(deadline):
                await kept.done.wait()
        except TimeoutError:
            return None
        self.drop(name)
        return kept.tokens

    def _expire(self, name: str, kept: PrefillWork) -> None:
        if self._kept.get(name) is kept:
            self.drop(name)
