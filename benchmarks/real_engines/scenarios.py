"""Scenarios for two engines that the index follows: prompts of many kinds, and what happens to engines besides."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence

from .engine import Server
from .model import VOCABULARY
from .prober import PromptSender

ADAPTERS = ("red", "blue")


def some(random_: random.Random, count: int) -> list[int]:
    """`count` random tokens."""
    return [random_.randrange(VOCABULARY) for _ in range(count)]


def turns(prober: PromptSender, servers: Sequence[Server], seed: int, conversations: int = 8, length: int = 6) -> None:
    """Conversations that grow by answers and questions; a few change their engine. Some are streamed."""
    random_ = random.Random(seed)
    open_ = [(some(random_, random_.randrange(20, 200)), random_.choice(servers)) for _ in range(conversations)]
    for turn in range(length):
        for at, (prompt, server) in enumerate(open_):
            where = random_.choice(servers) if random_.random() < 0.2 else server
            answered = prober.ask("turns", where, prompt, stream=(at + turn) % 2 == 0, longest=random_.randrange(1, 40))
            open_[at] = [*prompt, *answered.tokens, *some(random_, random_.randrange(1, 90))], where


def chats(prober: PromptSender, servers: Sequence[Server], seed: int, conversations: int = 3, length: int = 5) -> None:
    """Conversations sent as messages, rendered by the engine."""
    random_ = random.Random(seed)
    system = {"role": "system", "content": "You are a helpful assistant. " * 6}
    for at in range(conversations):
        server = servers[at % len(servers)]
        messages = [system]
        for turn in range(length):
            content = "".join(random_.choices("abcdefgh ", k=random_.randrange(10, 120)))
            messages.append({"role": "user", "content": content})
            said = prober.chat("chats", server, messages, stream=turn % 2 == 1)
            messages.append({"role": "assistant", "content": said})


def siblings(prober: PromptSender, servers: Sequence[Server], seed: int, families: int = 4, children: int = 9) -> None:
    """Prompts with a common beginning, of lengths around whole blocks; each third one is sent twice."""
    random_ = random.Random(seed)
    for _ in range(families):
        common = some(random_, random_.randrange(30, 400))
        for child in range(children):
            server = random_.choice(servers)
            prompt = common + some(random_, random_.randrange(1, 120))
            if child % 3 == 0:
                prompt = prompt[: len(prompt) // server.engine.block_size * server.engine.block_size] or prompt
            prober.ask("siblings", server, prompt, longest=1)
            if child % 3 == 0:
                prober.ask("siblings", server, prompt, longest=1)


def salts(prober: PromptSender, servers: Sequence[Server], seed: int, prompts: int = 6) -> None:
    """The same prompts without a salt and with two; each second one is salted first."""
    random_ = random.Random(seed)
    for at in range(prompts):
        prompt = some(random_, random_.randrange(100, 300))
        server = servers[at % len(servers)]
        first = (None, "tenant a") if at % 4 < 2 else ("tenant a", None)
        for salt in (*first, "tenant b", *first, "tenant b"):
            prober.ask("salts", server, prompt + some(random_, 8), salt=salt)


def adapters(prober: PromptSender, servers: Sequence[Server], seed: int, prompts: int = 5) -> None:
    """The same prompts for the model and for two LoRA adapters."""
    random_ = random.Random(seed)
    for at in range(prompts):
        prompt = some(random_, random_.randrange(100, 300))
        server = servers[at % len(servers)]
        for adapter in (None, *ADAPTERS, *ADAPTERS, None):
            prober.ask("adapters", server, prompt + some(random_, 8), adapter=adapter)


def pressure(prober: PromptSender, servers: Sequence[Server], seed: int, prompts: int = 60) -> None:
    """Long prompts, old and new, in a cache that is too small for all of them."""
    random_ = random.Random(seed)
    bases = [some(random_, random_.randrange(600, 1800)) for _ in range(12)]
    for _ in range(prompts):
        base = random_.choice(bases)
        prompt = base[: random_.randrange(100, len(base))] + some(random_, random_.randrange(1, 80))
        prober.ask("full cache", random_.choice(servers), prompt, longest=random_.randrange(1, 20))


def hybrid(prober: PromptSender, server: Server, seed: int, prompts: int = 150) -> None:
    """Prompts of common beginnings for a model with a sliding window, in a small cache."""
    random_ = random.Random(seed)
    bases = [some(random_, random_.randrange(200, 1200)) for _ in range(10)]
    for _ in range(prompts):
        base = random_.choice(bases)
        prompt = base[: random_.randrange(40, len(base))] + some(random_, random_.randrange(1, 80))
        prober.ask("hybrid", server, prompt, longest=random_.randrange(1, 20))


def hybrid_whole(prober: PromptSender, server: Server, seed: int, prompts: int = 60) -> None:
    """Beginnings of a few prompts, cut at whole blocks: what is held is more than what can be reused.

    The last block is computed again, so a window has to be held that ends a block earlier.
    """
    random_ = random.Random(seed)
    block = server.engine.block_size
    bases = [some(random_, random_.randrange(10, 40) * block) for _ in range(6)]
    for _ in range(prompts):
        base = random_.choice(bases)
        prober.ask("hybrid, whole blocks", server, base[: random_.randrange(2, len(base) // block + 1) * block])


def ranks(prober: PromptSender, server: Server, seed: int, prompts: int = 60) -> None:
    """Prompts of common beginnings for the data-parallel ranks of an engine, each request for a rank by name."""
    random_ = random.Random(seed)
    bases = [some(random_, random_.randrange(100, 500)) for _ in range(6)]
    for _ in range(prompts):
        prompt = random_.choice(bases) + some(random_, random_.randrange(1, 80))
        prober.ask("two ranks", server, prompt, rank=random_.randrange(server.setup.ranks))


def together(prober: PromptSender, servers: Sequence[Server], seed: int, clients: int = 6, prompts: int = 12) -> None:
    """Clients at the same time, each with its own conversation after a common beginning."""
    common = some(random.Random(seed), 150)
    failed: list[BaseException] = []

    def run(number: int) -> None:
        random_ = random.Random(seed + number)
        prompt = common + some(random_, 60)
        try:
            for _ in range(prompts):
                answered = prober.ask("clients at once", servers[number % len(servers)], prompt, stream=number % 2 == 0)
                prompt = [*prompt, *answered.tokens, *some(random_, random_.randrange(1, 60))]
        except BaseException as error:  # noqa: BLE001 - it is raised again in the waiting thread
            failed.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def mixed(prober: PromptSender, servers: Sequence[Server], scenario: str, prompts: Sequence[list[int]]) -> None:
    """Sends each prompt to each engine: before and after something happens to one of them."""
    for prompt in prompts:
        for server in servers:
            prober.ask(scenario, server, prompt)
