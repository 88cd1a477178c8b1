"""Prompts that one engine computes and another one answers: what the prefill side keeps until it is fetched.

Both engines' ways are spoken. With vLLM's the prefill engine is asked first; its answer says where the blocks are
(`kv_transfer_params`) and the decode engine fetches them. With SGLang's both are asked at once with the same
`bootstrap_room`; the decode engine waits for the prompt to be computed. Bytes of KV do not exist here, so what is
fetched is the number of tokens, from the prefill engine's own HTTP port.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field

KEPT = 60.0
"""Seconds that a computed prompt is kept for whoever is to fetch it, and that a decode engine waits for one."""
_MOST = 10_000  # prompts kept


@dataclass(slots=True)
class PrefillWork:
    """A prompt that is being computed, or was, for another engine."""

    tokens: int
    done: asyncio.Event = field(default_factory=asyncio.Event)


class Handover:
    """Computed prompts by the name under which they will be fetched."""

    def __init__(self) -> None:
        self._kept: dict[str, PrefillWork] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def begin(self, tokens: int, name: str | None = None) -> str:
        """A prompt of `tokens` tokens begins to be computed. Returns the name to fetch it by: `name`, or a new one."""
        name = secrets.token_hex(8) if name is None else name
        while len(self._kept) >= _MOST:
            del self._kept[next(iter(self._kept))]
        self._kept[name] = PrefillWork(tokens)
        return name

    def drop(self, name: str) -> None:
        """Forget a prompt that will not be fetched."""
        self._kept.pop(name, None)

    def keep(self, name: str) -> None:
        """Note that a prompt is computed, and keep it for a while."""
        if (kept := self._kept.get(name)) is not None:
            kept.done.set()
            asyncio.get_running_loop().call_later(KEPT, self._expire, name, kept)

    async def fetch(self, name: str, patience: float) -> int | None:
        """The tokens of a prompt, once it is computed; None if there is none by this name in `patience` seconds."""
        deadline = asyncio.get_running_loop().time() + patience
        while (kept := self._kept.get(name)) is None:
            # With SGLang's way, the other request may still be on its way.
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
