"""Attacks all processes of kvatlas at once, for as long as you like.

`python -m tests.process.attack --minutes 10 --seed 1`

A service and a router follow four simulated engines; another router, which hedges, has engines that do what engines do
on bad days, and a third one reads prompts by a hostile model directory. Each of the processes has keys and a limit of
its memory. Hostile clients attack all ports, with and without a key, while a client with a key works and every
listener's health is asked for. In the end nothing may be wrong: see `Targets.check`.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.process.attack import engines as hostile
from tests.process.attack import table
from tests.process.attack.kinds import ATTACKS
from tests.process.attack.prober import Prober
from tests.process.attack.processes import PATIENCE, Keys, Process
from tests.process.attack.target import MODEL, Attack, Target
from tests.process.router.deciding import write_tokenizer
from tests.support import engine as bad

from kvatlas.sim import EngineConfig
from kvatlas.sim.server import Fleet, Query, ServerConfig

BLOCK = 16
CONNECTIONS = 300
BODIES = 128 << 20  # bytes of bodies that a server may hold at once
MEMORY = 4 << 30  # bytes of address space of each process: stacks and allocator's reserves are most of it
RESIDENT = 3 << 29  # resident bytes that a process may ever have
GROWTH = 256 << 20  # resident bytes that a process may have gained when all is over
HEALTH = 3.0  # seconds within which health must be answered: a connection may have to wait until a stranger gives way
ATTACKERS = 8
# Takes a step for each pair of messages, and does not end at all if it is told so.
TEMPLATE = (
    "{% if messages[0]['content'] == 'endless' %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}"
    "{% endfor %}{% endif %}{% if messages[0]['content'] == 'large' %}{% for a in range(99999) %}"
    "{{ 'x' * 9999 }}{% endfor %}{% endif %}{% for m in messages %}{% for n in messages %}{% endfor %}"
    "{{ m['content'] }}{% endfor %}"
)


class Targets:
    """All that is attacked; use as a context manager."""

    def __init__(self, seed: int, note: Callable[[str], None]) -> None:
        self.random = random.Random(seed)
        self.note = note
        self.done: defaultdict[str, table.Line] = defaultdict(table.Line)
        self.reached: Counter[str] = Counter()  # engines, and should not have
        self.took: dict[str, list[float]] = {}
        self._counting = threading.Lock()
        self.answers: Counter[int | str] = Counter()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._stack = ExitStack()
        settings = ServerConfig(
            engine=EngineConfig(block_size=BLOCK, blocks=4000, prefill_rate=60_000, decode_rate=3_000), model=MODEL
        )
        self.fleet = Fleet(4, settings, name="engine", processes=1)
        self.engines = [self.fleet[number] for number in range(4)]
        self.bad = [bad.Engine(model=MODEL) for _ in range(4)]
        self.prompts = [[self.random.randrange(9_000) for _ in range(16 * 20)] for _ in range(8)]

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            keys = Keys(directory)
            stack.enter_context(self.fleet)
            for engine in self.bad:
                stack.callback(engine.stop)
            hostile.long_words(self.bad[0])
            followed = [flag for engine in self.engines for flag in ("--engine", f"{engine.name}={engine.url}")]
            limits = ("--max-connections", str(CONNECTIONS), "--request-timeout", "5s")
            snapshots = ("--snapshot-dir", str(directory / "snapshots"), "--snapshot-every", "5s")
            self.service = self._start(stack, keys, "serve", *followed, *limits, *snapshots)
            routing = (
                *limits,
                "--write-timeout",
                "5s",
                "--body-memory",
                str(BODIES),
                "--max-body",
                "64MiB",
            )
            self.router = self._start(stack, keys, "router", *followed, *routing, "--tokenizer", "none")
            model = directory / "model"
            model.mkdir()
            write_tokenizer(model, TEMPLATE)
            reads = ("--no-events", "--tokenizer", str(model))
            self.reading = self._start(stack, keys, "router", *followed, *routing, *reads, name="reading router")
            failing = [flag for number, e in enumerate(self.bad) for flag in ("--engine", f"bad-{number}={e.url}")]
            waits = ("--first-byte-timeout", "5s", "--stall-timeout", "5s", "--hedge-after", "0.9")
            idle = ("--no-events", "--tokenizer", "none")
            self.crowded = self._start(stack, keys, "router", *failing, *routing, *waits, *idle, name="hedging router")
            for process in self.processes:
                process.wait_ready()
            self._stack = stack.pop_all()
        self.before = {id(process): process.resident() for process in self.processes}
        return self

    def _start(self, stack: ExitStack, keys: Keys, command: str, *flags: str, name: str = "") -> Process:
        process = Process(command, flags, keys, MEMORY, name)
        stack.callback(process.stop)
        return process

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.quiesce()
        self._stack.close()

    @property
    def processes(self) -> list[Process]:
        """All processes of kvatlas."""
        return [self.service, self.router, self.reading, self.crowded]

    # The attack

    def run(self, seconds: float, only: Sequence[str] | None = None) -> None:
        """Attacks for so long, with all kinds, or only with these."""
        kinds = tuple(kind for kind in ATTACKS if only is None or kind.__name__ in only)
        targets = [Target(process.port, None, process.admin) for process in self.processes]
        targets += [Target(process.port, process.keys.ask, process.admin) for process in self.processes]
        ports = {process.name: process.port for process in self.processes}
        prober = Prober(ports | {f"{process.name}, admin": process.admin for process in self.processes})
        self._stop.clear()
        for _ in range(ATTACKERS):
            self._thread(self._attack, targets, kinds, random.Random(self.random.randrange(1 << 30)))
        self._thread(self._work)
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            for engine in self.bad:
                engine.behaviour = hostile.BAD_DAYS[self.random.choice(tuple(hostile.BAD_DAYS))]
            self.reached.update(hostile.forbidden(self.bad, self.router.keys))
            self._stop.wait(min(left, 1.0))
            for process in self.processes:
                assert process.alive, f"{process.name} ended: {process.process.returncode}\n{''.join(process.log)}"
        for engine in self.bad:
            engine.behaviour = bad.usual
        self.quiesce()
        self.took = prober.stop()
        self.reached.update(hostile.forbidden(self.bad, self.router.keys))

    def _thread(self, run: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=run, args=arguments, daemon=True)
        thread.start()
        self._threads.append(thread)

    def quiesce(self) -> None:
        """Ends the attack and the work."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _attack(self, targets: list[Target], attacks: tuple[Attack, ...], choose: random.Random) -> None:
        while not self._stop.is_set():
            attack, at = choose.choice(attacks), choose.choice(targets)
            target = Target(at.port, at.key, at.admin)
            attack(target, choose)
            with self._counting:
                line = self.done[attack.__name__]
                line.with_key += target.key is not None
                line.without_key += target.key is None
                line.traffic.update(target.traffic)
                line.outcomes.update(target.outcomes)

    def _work(self) -> None:
        """A client with a key: each of its requests must be answered."""
        choose = random.Random(self.random.randrange(1 << 30))
        key = self.router.keys.ask
        while not self._stop.is_set():
            prompt = choose.choice(self.prompts)[: choose.randrange(1, 320)]
            body = {"model": MODEL, "prompt": prompt, "max_tokens": 4}
            try:
                status, answer = self.router.ask("POST", "/v1/completions", body, key=key)
            except OSError as error:
                self.answers[type(error).__name__] += 1
                self.note(f"the client with a key: {error!r}")
            else:
                self.answers[status] += 1
                if status != 200:
                    self.note(f"the client with a key: {status} {json.dumps(answer)[:300]}")

    # Afterwards

    def check(self) -> list[str]:
        """Everything that is not as it should be after an attack; empty if all is well."""
        wrong = [f"the client with a key got {self.answers}"] if set(self.answers) != {200} else []
        wrong += [f"{what} ({times} times)" for what, times in self.reached.most_common(20)]
        for name, took in self.took.items():
            worst = max(took, default=float("inf"))
            wrong += [f"{name}: health took {worst:.1f} s"] if worst > HEALTH else []
        for process in self.processes:
            highest = process.highest()
            wrong += [f"{process.name}: {highest:,} bytes resident at most"] if highest > RESIDENT else []
            is_router = process.command == "router"
            if is_router:
                wrong += self._settles(process, "kvatlas_router_engine_requests_in_flight", 0)
            # The one that asks is the last.
            wrong += self._settles(process, f"kvatlas_{'router' if is_router else 'http'}_connections", 1)
            grown = process.resident() - self.before[id(process)]
            wrong += [f"{process.name}: {grown:,} bytes more than before"] if grown > GROWTH else []
            lost = [line for line in process.log if "panic" in line or "internal error" in line]
            wrong += [f"{process.name}: {line}" for line in lost]
        wrong += self._compare(self.service)
        wrong += [f"{p.name} ended with {code}" for p in self.processes if (code := p.stop()) != 0]
        return wrong

    def _settles(self, process: Process, metric: str, most: float) -> list[str]:
        """A metric must come down to this in the end."""
        end = time.monotonic() + PATIENCE
        while (value := process.metric(metric)) > most and time.monotonic() < end:
            time.sleep(0.2)
        return [f"{process.name}: {metric} is {value:,.0f}"] if value > most else []

    def _compare(self, service: Process) -> list[str]:
        """Every answer at a quiet point must be what the engines hold."""
        for engine in self.engines:
            engine.settle()
        truths = {e.name: e.match_all([Query(prompt) for prompt in self.prompts]) for e in self.engines}

        def differences() -> list[str]:
            found = []
            for number, prompt in enumerate(self.prompts):
                _, answer = service.ask("POST", "/query", {"model_name": MODEL, "token_ids": prompt})
                for name, held in truths.items():
                    told = answer.get("scores", {}).get(name, {}).get("0", 0)
                    if told != held[number].held * BLOCK or "untrusted" in answer:
                        found.append(f"{name}: {told} tokens of prompt {number}, not {held[number].held * BLOCK}")
            return found

        end = time.monotonic() + PATIENCE
        while (wrong := differences()) and time.monotonic() < end:
            time.sleep(0.5)
        return wrong


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument(
        "--only", default="", help="kinds of attacks, by name and with commas between; all if not given"
    )
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with Targets(options.seed, lambda line: print(line, flush=True)) as attacked:
        attacked.run(60 * options.minutes, options.only.split(",") if options.only else None)
        print(*table.lines(attacked.done), sep="\n", flush=True)
        for process in attacked.processes:
            print(f"{process.name}: {process.highest() >> 20:,} MiB resident at most", flush=True)
        for name, took in attacked.took.items():
            slow = sorted(took)[-1 - len(took) // 100] if took else float("inf")
            print(
                f"{name}: health within {slow:.2f} s in 99 of 100, {max(took, default=0.0):.2f} s at most", flush=True
            )
        print(f"answers to the client with a key: {dict(attacked.answers)}", flush=True)
        wrong = attacked.check()
    for line in wrong:
        print(f"WRONG: {line}")
    print("nothing was lost, nothing is held" if not wrong else f"{len(wrong)} things are wrong")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
