"""The index and the decisions inside a gateway of one's own: no server, no socket.

A gateway that already receives KV events and forwards requests needs three calls: `apply` for each event, `choose` for
each request, and `first_token` and `finish` for what becomes of it.
"""

from collections.abc import Iterable, Sequence

from kvatlas import BlockIndex, content_hashes
from kvatlas.events import Event, Remove, Store
from kvatlas.routing import Router

BLOCK_SIZE = 16


class Gateway:
    """Decides where prompts go. Forwarding them is left to the caller."""

    def __init__(self, workers: Sequence[str]) -> None:
        self.index = BlockIndex(block_size=BLOCK_SIZE)
        self.router = Router(workers=workers, block_size=BLOCK_SIZE)

    def on_events(self, events: Iterable[Event]) -> None:
        """An engine stored or evicted blocks."""
        self.index.apply(events)

    def send(self, prompt: Sequence[int]) -> str | None:
        """The worker for a prompt, which counts as its work until it has ended; None while all have enough to do."""
        decision = self.router.choose(tokens=prompt, match=self.index.find(tokens=prompt))
        if decision.worker is not None:
            # Here a gateway would forward the request, and call these when it hears of it.
            decision.first_token()
            decision.finish()
        return decision.worker


def main() -> None:
    """Two engines; the second one has a conversation in its cache."""
    gateway = Gateway(["engine-a", "engine-b"])
    conversation = list(range(1_600))
    hashes = list(range(1, 101))  # the engine's own names of its blocks
    gateway.on_events([Store("engine-b", hashes, content_hashes(conversation, BLOCK_SIZE).tolist())])
    print("next turn:", gateway.send([*conversation, *range(5_000, 5_100)]))
    gateway.on_events([Remove("engine-b", hashes)])
    print("after its eviction, blocks held:", gateway.index.find(tokens=conversation).depth)


if __name__ == "__main__":
    main()
