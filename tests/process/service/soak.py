"""Random mixtures of faults, for as long as you like: `python -m tests.process.service.soak --minutes 10 --seed 1`.

Every few seconds another mixture, then a quiet point at which every answer must be the engines' own. Engines are
killed, paused and restarted, and so is the service.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable

from tests.process.service.arena import FORGETFUL, KINDS, Arena

CHANCES = {
    "drop": 0.05,
    "duplicate": 0.1,
    "reorder": 0.1,
    "delay": 0.02,
    "truncate": 0.02,
    "stray": 0.001,
    "corrupt": 0.005,
    "poison_event": 0.05,
    "poison_type": 0.01,
    "poison_payload": 0.02,
    "restart": 0.002,
}


def mixture(choose: random.Random) -> dict[str, object]:
    """Some of the faults, each at a rate up to its own."""
    chosen = choose.sample(sorted(CHANCES), choose.randrange(len(CHANCES) + 1))
    faults: dict[str, object] = {name: choose.random() * CHANCES[name] for name in chosen}
    if choose.random() < 0.2:
        faults["replay_socket"] = choose.choice(("closed", "silent", "slow"))
    return faults


def act(arena: Arena, choose: random.Random) -> str:
    """One thing that happens once, during the load."""
    engine = choose.choice(arena.engines)
    match choose.randrange(10):
        case 0:
            engine.restart(choose.random() / 2)
            return f"{engine.name} restarts"
        case 1:
            engine.kill()
            time.sleep(choose.random() / 2)
            engine.respawn()
            return f"{engine.name} is killed and comes back"
        case 2:
            engine.pause(choose.random() * 2)
            return f"{engine.name} hangs for a while"
        case 3 | 4:
            arena.service.kill()
            arena.service.start()
            return "the service is killed and comes back"
        case 5:
            engine.reset(with_next=choose.random() < 0.5)
            return f"{engine.name} is told to forget its cache"
        case 6:
            number = choose.randrange(engine.config.ranks)
            arena.service.unregister(engine, number)
            time.sleep(choose.random() / 2)
            arena.service.register(engine, number)
            return f"rank {number} of {engine.name} is unregistered and registered again"
        case 7:
            arena.service.wait_ready()
            unregister = arena.service.register_nobody()
            assert arena.service.call("GET", "/ready")[0] == 200, "nobody's registration takes readiness away"
            assert arena.service.call("GET", "/ready?strict=1")[0] == 503
            unregister()
            return "somebody is registered who does not answer"
        case _:
            return "nothing more"


def soak(seconds: float, seed: int, note: Callable[[str], None] = lambda _: None) -> Arena:
    """Runs for about so long; raises AssertionError at the first wrong answer."""
    choose = random.Random(seed)
    end = time.monotonic() + seconds
    rounds = 0
    with Arena(seed, (*KINDS, *FORGETFUL)) as arena:
        while rounds == 0 or time.monotonic() < end:
            for engine in arena.engines:
                faults = mixture(choose)
                if engine.config.replay_socket == "none":
                    faults.pop("replay_socket", None)
                engine.faults(**faults)
            arena.start_load()
            time.sleep(0.5 + choose.random())
            what = act(arena, choose)
            time.sleep(0.5 + choose.random())
            arena.calm()
            arena.compare()
            rounds += 1
            note(f"round {rounds}: {what}; {arena.compared:,} answers right so far, {arena.requests:,} requests")
    return arena


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    arena = soak(60 * options.minutes, options.seed, lambda line: print(line, flush=True))
    print(
        f"{arena.compared:,} answers compared, {arena.hits:,} of them hits, {arena.partial} partial streams: all right"
    )


if __name__ == "__main__":
    main()
