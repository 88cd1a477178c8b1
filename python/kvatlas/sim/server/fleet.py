"""Fleet of simulated engines in processes of their own, with handles to query them and to inject faults."""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kvatlas.errors import ConfigError, InvalidArgumentError, SimulatedEngineError
from kvatlas.sim.server.addresses import reachable
from kvatlas.sim.server.client import ControlClient
from kvatlas.sim.server.config import ServerConfig
from kvatlas.sim.server.faults import Faults
from kvatlas.sim.server.traffic import TrafficConfig
from kvatlas.sim.server.truth import Completion, Query, RankState, Truth

_STOP = 10.0  # seconds for a process to end by itself


class EngineHandle:
    """Client of one engine of a fleet, which queries and controls the engine over HTTP."""

    def __init__(self, number: int, config: ServerConfig, process: _Process) -> None:
        self.number = number
        self.config = config  # with the real ports, once it runs
        self._process = process
        self._client: ControlClient | None = None

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def url(self) -> str:
        """URL of the engine's HTTP server."""
        return f"http://{reachable(self.config.host)}:{self.config.http_port}"

    def endpoint(self, rank: int = 0) -> str:
        """ZMQ endpoint of a rank's live event stream."""
        return f"tcp://{reachable(self.config.host)}:{self.config.events_port + self._rank(rank)}"

    def replay_endpoint(self, rank: int = 0) -> str | None:
        """ZMQ endpoint at which a rank answers replay requests; None if it never does."""
        if self.config.replay_socket == "none":
            return None
        return f"tcp://{reachable(self.config.host)}:{self.config.replay_port + self._rank(rank)}"

    def pull_endpoint(self, rank: int = 0) -> str | None:
        """Host and port at which peers pull blocks from a rank; None if pulls are not possible."""
        if not self.config.tiers.pulls:
            return None
        return f"{reachable(self.config.host)}:{self.config.pull_port + self._rank(rank)}"

    # The truth

    def match(self, tokens: Sequence[int], *, lora: str | None = None, salt: str | None = None, rank: int = 0) -> Truth:
        """Query the blocks of a prompt that a rank holds."""
        return self.match_all([Query(tokens, lora, salt, rank)])[0]

    def match_all(self, queries: Sequence[Query]) -> list[Truth]:
        """Query the blocks of many prompts that ranks hold, all at one moment."""
        rows = [
            {"token_ids": list(q.tokens), "lora_name": q.lora, "cache_salt": q.salt, "rank": q.rank} for q in queries
        ]
        return [Truth(**row) for row in self._post("/sim/match", {"queries": rows})["answers"]]

    def state(self) -> list[RankState]:
        """Query the state of each of the engine's ranks."""
        return [RankState(**row) for row in self._control.call("GET", "/sim/state")["ranks"]]

    def wait_quiet(self, timeout: float = 60.0) -> list[RankState]:
        """Wait until no request, unpublished event or unsent batch remains at any rank.

        Raises `TimeoutError` after `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while True:
            states = self.state()
            if all(state.quiet for state in states):
                return states
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name} is still busy after {timeout:g} s: {states}")
            time.sleep(0.01)

    def settle(self, timeout: float = 60.0) -> list[RankState]:
        """End all faults, have each rank publish one more batch, and wait until no request or batch remains.

        Without the additional batch a reader could not notice that the previous one was dropped. Raises `TimeoutError`
        after `timeout` seconds.
        """
        self.resume()
        self.faults(**asdict(Faults()))
        for rank in range(self.config.ranks):
            self.complete([secrets.randbits(31) for _ in range(self.config.engine.block_size)], 1, rank=rank)
        return self.wait_quiet(timeout)

    def complete(
        self,
        prompt: Sequence[int] | str,
        max_tokens: int = 16,
        *,
        lora: str | None = None,
        salt: str | None = None,
        rank: int | None = None,
        transfer: Mapping[str, object] | None = None,
    ) -> Completion:
        """Send a request to OpenAI's completions route, and wait for its end. `transfer`: its `kv_transfer_params`."""
        body = {
            "prompt": prompt if isinstance(prompt, str) else list(prompt),
            "max_tokens": max_tokens,
            "model": lora or self.config.model,
            **({"cache_salt": salt} if salt else {}),
            **({"kv_transfer_params": dict(transfer)} if transfer is not None else {}),
        }
        headers = {} if rank is None else {"X-data-parallel-rank": str(rank)}
        answer = self._control.call("POST", "/v1/completions", body, headers)
        usage = answer["usage"]
        return Completion(
            answer["choices"][0]["text"],
            usage["prompt_tokens"],
            usage["completion_tokens"],
            usage["prompt_tokens_details"]["cached_tokens"],
        )

    def pull_from(self, source: EngineHandle, rank: int = 0) -> dict[str, object]:
        """Create the `kv_transfer_params` of a request that pulls blocks from a rank of another engine.

        Each call gives a new id.
        """
        host, _, port = (source.pull_endpoint(rank) or "").rpartition(":")
        name = secrets.token_hex(8)
        return {"remote_kv_source": {"kv_request_id": name, "remote_host": host, "remote_port": int(port or 0)}}

    # What goes wrong

    def faults(self, **changes: object) -> Faults:
        """Change some faults of the engine (see `Faults`). Returns all faults."""
        return Faults(**self._post("/sim/faults", changes))

    def restart(self, down: float = 0.0) -> int:
        """Restart the engine in the same process after `down` seconds.

        The cache is then empty, sequence numbers begin at 0, and the ports are the same. Returns the new epoch (number
        of restarts) once the engine is up.
        """
        return int(self._post("/sim/restart", {"down": down})["epoch"])

    def pause(self, seconds: float | None = None) -> None:
        """Pause the engine for `seconds`, or until `resume`: it neither publishes nor answers."""
        self._post("/sim/pause", {} if seconds is None else {"seconds": seconds})

    def resume(self) -> None:
        """End a pause of the engine."""
        self._post("/sim/resume", {})

    def serve_model(self, model: str) -> None:
        """Serve another model from now on, with an empty cache, like an engine restarted with that model."""
        self._post("/sim/model", {"model": model})

    def reset(self, *, with_next: bool = False, with_host: bool = False) -> bool:
        """Clear the engine's cache. Returns False, and does nothing, while requests use the cache.

        `with_next`: announce the reset only together with the next events. `with_host`: clear host memory too, which is
        not announced.
        """
        body = {"with_next": with_next, "with_host": with_host}
        return bool(self._post("/sim/reset", body, ok=(200, 409))["reset"])

    # Its process

    @property
    def pid(self) -> int:
        """Id of the process that runs the engine."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """True while the process of the engine runs."""
        return self._process.alive

    def kill(self) -> None:
        """Kill the engine's process (SIGKILL), and with it all engines in the same process."""
        self._process.kill()

    def respawn(self) -> None:
        """Start the engine's process again, with the same engines on the same ports."""
        self._process.start()
        self._process.wait_ready()

    def close(self) -> None:
        """Close the connections of this handle; the engine continues to run."""
        if self._client is not None:
            self._client.close()
            self._client = None

    @property
    def _control(self) -> ControlClient:
        if self._client is None:
            self._client = ControlClient(self.url)
        return self._client

    def _post(self, path: str, body: dict[str, Any], ok: Sequence[int] = (200,)) -> dict[str, Any]:
        return self._control.call("POST", path, body, ok=ok)

    def _rank(self, rank: int) -> int:
        if not 0 <= rank < self.config.ranks:
            raise InvalidArgumentError(
                f"there is no rank {rank}: ranks are 0 to {self.config.ranks - 1}", "out_of_range"
            )
        return rank


@dataclass(slots=True)
class _Process:
    """Process that runs some engines of a fleet."""

    engines: list[EngineHandle]
    count: int  # of the whole fleet
    traffic: TrafficConfig | None
    running: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        if self.running is None:
            raise SimulatedEngineError("the process was never started", "not_started")
        return self.running.pid

    @property
    def alive(self) -> bool:
        return self.running is not None and self.running.poll() is None

    def start(self) -> None:
        """Start the process, without waiting until its engines serve."""
        if self.alive:
            raise SimulatedEngineError("the process is running: kill it first", "running")
        self.finish()
        command = [sys.executable, "-m", "kvatlas.sim.server.process"]
        # Ctrl-C in a terminal reaches all processes, so SIGINT is blocked for the new one: its parent stops it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.running = subprocess.Popen(  # noqa: S603  # this very interpreter
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        plan = {
            "engines": {engine.number: engine.config.as_dict() for engine in self.engines},
            "count": self.count,
            "traffic": self.traffic and self.traffic.as_dict(),
        }
        if self.running.stdin is not None:
            self.running.stdin.write(json.dumps(plan) + "\n")
            self.running.stdin.flush()

    def wait_ready(self) -> None:
        """Wait until the engines of the process serve. Raises `SimulatedEngineError` if an engine cannot."""
        running = self.running
        if running is None or running.stdout is None:
            raise SimulatedEngineError("the process was never started", "not_started")
        line = running.stdout.readline()
        if not line:
            raise SimulatedEngineError(
                f"an engine process exited with status {running.wait()} before it was ready", "not_started"
            )
        answer = json.loads(line)
        if "error" in answer:
            raise SimulatedEngineError(answer["error"], answer["code"])
        for engine in self.engines:
            ports = answer["engines"][str(engine.number)]
            engine.config = replace(
                engine.config,
                http_port=ports["http_port"],
                events_port=ports["events_port"],
                replay_port=ports["replay_port"] or 0,
                pull_port=ports["pull_port"] or 0,
            )

    def kill(self) -> None:
        for engine in self.engines:
            engine.close()
        if self.running is not None:
            self.running.kill()
            self.running.wait()

    def terminate(self) -> None:
        if self.alive and self.running is not None:
            self.running.terminate()

    def finish(self, timeout: float = _STOP) -> None:
        """Wait until the process has ended; kill it after `timeout` seconds."""
        for engine in self.engines:
            engine.close()
        running = self.running
        if running is None:
            return
        try:
            running.wait(timeout)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()
        for pipe in (running.stdin, running.stdout):
            if pipe is not None:
                pipe.close()
        self.running = None


class Fleet:
    """Fleet of `engines` simulated engines with the configuration `config`, in `processes` processes.

    A context manager: the engines serve within its block. Ports given as 0 are any free ports; otherwise engine i has
    its HTTP server at `http_port + i`, its event streams from `events_port + 2 * ranks * i` on, and its replays `ranks`
    ports above those.

    Args:
        engines: Number of engines.
        config: Configuration of all engines; names, seeds and ports are replaced for each.
        processes: Number of processes, by default one for each engine; engines in one process also end together.
        http_port: Port of the first engine's HTTP server.
        events_port: Port of the first engine's first event stream.
        name: Prefix of the engines' names, before a number.
        own_names: True if every engine has its own block hashes.
        traffic: Requests that the engines generate themselves; none if not given.
    """

    def __init__(
        self,
        engines: int = 2,
        config: ServerConfig | None = None,
        *,
        processes: int | None = None,
        http_port: int = 0,
        events_port: int = 0,
        name: str = "engine",
        own_names: bool = False,
        traffic: TrafficConfig | None = None,
    ) -> None:
        config = config or ServerConfig()
        if engines < 1:
            raise ConfigError(f"a fleet has at least 1 engine, not {engines}")
        processes = engines if processes is None else processes
        if not 1 <= processes <= engines:
            raise ConfigError(f"processes must be from 1 to {engines}, at most one per engine, not {processes}")
        ranks = config.ranks
        for what, first, each in (("http_port", http_port, 1), ("events_port", events_port, 2 * ranks)):
            if first and first + engines * each > 65_536:
                raise ConfigError(f"{what} {first} leaves no room for the {engines * each} ports of {engines} engines")
        self._processes = [_Process([], engines, traffic) for _ in range(processes)]
        self.engines: list[EngineHandle] = []
        for number in range(engines):
            own = replace(
                config,
                name=f"{name}-{number}",
                http_port=http_port and http_port + number,
                events_port=events_port and events_port + 2 * ranks * number,
                replay_port=events_port and events_port + 2 * ranks * number + ranks,
                hash_seed=f"{config.hash_seed or config.seed}/{number}" if own_names else config.hash_seed,
            )
            process = self._processes[number % processes]
            process.engines.append(EngineHandle(number, own, process))
            self.engines.append(process.engines[-1])

    def start(self) -> None:
        """Start all processes, and wait until all engines serve.

        Raises:
            SimulatedEngineError: An engine cannot serve; all engines are stopped.
        """
        try:
            for process in self._processes:
                process.start()
            for process in self._processes:
                process.wait_ready()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End all processes of the fleet."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.finish()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self.engines)

    def __getitem__(self, number: int) -> EngineHandle:
        return self.engines[number]

    @property
    def urls(self) -> list[str]:
        """URLs of the engines' HTTP servers."""
        return [engine.url for engine in self.engines]

    @property
    def dead(self) -> list[EngineHandle]:
        """Handles of the engines whose process has ended."""
        return [engine for engine in self.engines if not engine.alive]

    def write_engines_file(self, path: str | Path) -> None:
        """Write the engines' URLs to a file for `kvatlas serve --engines-file`, atomically. Raises `OSError`.

        If engines pull blocks from each other, the addresses for pulls are written too.
        """
        path = Path(path)
        fresh = path.with_name(f".{path.name}.new")
        rows = []
        for engine in self.engines:
            row = f'[[engine]]\nurl = "{engine.url}"\n'
            rows.append(row if (pull := engine.pull_endpoint()) is None else f'{row}pull = "{pull}"\n')
        fresh.write_text("".join(rows), encoding="utf-8")
        fresh.replace(path)
