"""A real Mooncake master and client beside the index: what the store has, by its own client, and what the service says.

Blocks are put into the store under keys as vLLM's `MooncakeStoreConnector` makes them, two objects a block, as of
two tensor-parallel ranks. Engines are stand-ins: they only announce what is on their devices. After each step the
service must say of each prompt what the store's client finds. No released wheel publishes the master's events, so only
the lists of keys are tried here.
"""

from __future__ import annotations

import hashlib
import json
import random
import socket
import subprocess
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec

from kvatlas.service import Config, HttpConfig, Service
from kvatlas.service.config import Pool
from kvatlas.sim.server.publisher import Publisher

VERSION = "0.3.13.post1"
PACKAGE = "mooncake-transfer-engine-non-cuda"
BLOCK = 16
RANKS = 2
ROOM = 64 << 20  # bytes of the store
VALUE = 256 << 10  # bytes of an object
LEASE = 0.5  # seconds
MODEL = "tiny"
WAIT = 30.0  # seconds for the service to see a change

# Runs in the environment that has the store's client: a command a line, an answer a line.
CLIENT = """
import json, sys
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
host, metadata, room, master = sys.argv[1:]
code = store.setup(host, metadata, int(room), 32 << 20, "tcp", "", master)
print(json.dumps(code), flush=True)
for line in sys.stdin:
    method, *arguments = json.loads(line)
    if method == "put":
        answer = [store.put(key, b"x" * arguments[1]) for key in arguments[0]]
    elif method == "exists":
        answer = store.batch_is_exist(arguments[0])
    elif method == "remove":
        answer = [store.remove(key) for key in arguments[0]]
    elif method == "remove_all":
        answer = store.remove_all(True)
    print(json.dumps(answer), flush=True)
store.close()
"""


class MooncakeError(Exception):
    """The store cannot be installed or started."""


@dataclass
class Result:
    """A step: what was tried, prompts and blocks compared, and answers that were wrong."""

    step: str
    prompts: int = 0
    blocks: int = 0
    wrong: list[str] = field(default_factory=list)


def digest(prompt: tuple[int, ...]) -> str:
    return hashlib.sha256(repr(prompt).encode()).hexdigest()


def name_of(prompt: tuple[int, ...]) -> int:
    """The name of a prompt's last block in vLLM's events: the end of its digest."""
    return int(digest(prompt)[-16:], 16)


def keys_of(prompt: tuple[int, ...]) -> list[str]:
    """Keys of the objects of a prompt's last block."""
    return [f"{MODEL}@tp_rank:{rank}@pcp0@dcp0@pp_rank:0@group:0@{digest(prompt)}" for rank in range(RANKS)]


def install(home: Path, version: str, echo: Callable[[str], None]) -> Path:
    """Install the store into an environment of its own. Returns its Python."""
    where = home / f"mooncake-{version}"
    python = where / "bin" / "python"
    if not (where / "ready").exists():
        echo(f"installing {PACKAGE} {version} into {where}")
        venv.create(where, with_pip=True, clear=True)
        command = [str(python), "-m", "pip", "install", "--quiet", f"{PACKAGE}=={version}"]
        installed = subprocess.run(command, capture_output=True, text=True, check=False)
        if installed.returncode:
            raise MooncakeError(f"pip could not install {PACKAGE} {version}: {installed.stderr.strip()[-500:]}")
        (where / "ready").touch()
    tried = subprocess.run([str(python), "-c", "import mooncake.store"], capture_output=True, text=True, check=False)
    if tried.returncode:
        why = tried.stderr.strip().splitlines()[-1]
        raise MooncakeError(f"its client cannot be loaded (it needs the system's libibverbs1): {why}")
    return python


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@contextmanager
def running(command: list[str], log: Path, **more: Any) -> Iterator[subprocess.Popen[str]]:
    with log.open("a") as output:
        process = subprocess.Popen(command, stderr=output, text=True, **({"stdout": output} | more))
        try:
            yield process
        finally:
            process.kill()
            process.wait()


class Store:
    """A master with a client, each a process of its own."""

    def __init__(self, python: Path, log: Path, stack: ExitStack) -> None:
        self.python, self.log, self.stack = python, log, stack
        self.rpc, self.metrics, self.metadata = free_port(), free_port(), free_port()
        self.master: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.metrics}"

    def start(self) -> None:
        """Start the master, or a new one at the same addresses, and wait until it serves."""
        if self.master is not None:
            self.master.kill()
            self.master.wait()
        command = [
            *(str(self.python.parent / "mooncake_master"), f"--rpc_port={self.rpc}", f"--metrics_port={self.metrics}"),
            *("--enable_http_metadata_server=true", f"--http_metadata_server_port={self.metadata}"),
            *(f"--default_kv_lease_ttl={int(LEASE * 1000)}", "--enable_kv_events=true"),
            *(f"--kv_events_bind_endpoint=tcp://127.0.0.1:{free_port()}", "--kv_events_backend_id=tried"),
        ]
        self.master = self.stack.enter_context(running(command, self.log))
        end = time.monotonic() + WAIT
        while True:
            try:
                health = httpx.get(f"{self.url}/health", trust_env=False).json()
            except httpx.HTTPError:
                health = {}
            if health.get("service_ready"):
                return
            if self.master.poll() is not None or time.monotonic() > end:
                raise MooncakeError(f"the master does not serve: see {self.log}")
            time.sleep(0.1)

    def client(self) -> Client:
        """A client that gives the store its room."""
        arguments = ["127.0.0.1", f"http://127.0.0.1:{self.metadata}/metadata", str(ROOM), f"127.0.0.1:{self.rpc}"]
        command = [str(self.python), "-c", CLIENT, *arguments]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        client = Client(self.stack.enter_context(running(command, self.log, **pipes)))
        if client.read() != 0:
            raise MooncakeError(f"the client could not be set up: see {self.log}")
        return client


class Client:
    """A client of the store in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, *command: Any) -> Any:
        assert self._process.stdin is not None
        print(json.dumps(command), file=self._process.stdin, flush=True)
        return self.read()

    def read(self) -> Any:
        """The next answer. The client's own log is on its standard output, too."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                return json.loads(line)
            except ValueError:
                continue
        raise MooncakeError("the client has ended")


class Trial:
    """Run the steps with one service and two engines. Only the first engine has blocks on its device."""

    def __init__(self, store: Store, service: Service, engine: Publisher, seed: int) -> None:
        self.store, self.service = store, service
        self.random = random.Random(seed)
        self.client = store.client()
        self.prompts = [tuple(self.random.choices(range(2), k=8)) for _ in range(40)]
        self.blocks = sorted({prompt[:end] for prompt in self.prompts for end in range(1, len(prompt) + 1)})
        for prompt in self.prompts:
            event = {
                "type": "BlockStored",
                "block_hashes": [name_of(prompt[:end]) for end in range(1, len(prompt) + 1)],
                "parent_block_hash": None,
                "token_ids": tokens_of(prompt),
                "block_size": BLOCK,
                "lora_id": None,
                "medium": "GPU",
                "lora_name": None,
            }
            engine.publish(msgspec.msgpack.encode([time.time(), [event], 0]))
        self.await_(lambda: self.scores(self.prompts[-1]).get("a", {}).get("gpu", 0) == 8 * BLOCK, "announced")

    def await_(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + WAIT
        while not condition():
            if time.monotonic() > end:
                raise MooncakeError(f"not within {WAIT:.0f} s: {what}")
            time.sleep(0.05)

    def scores(self, prompt: tuple[int, ...]) -> Any:
        question = {"token_ids": tokens_of(prompt), "model_name": MODEL}
        answer = httpx.post(f"{self.service.url}/query", json=question, trust_env=False, timeout=30)
        return answer.json().get("instances", {})

    def metric(self, name: str) -> float:
        lines = httpx.get(f"{self.service.url}/metrics", trust_env=False, timeout=30).text.splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name}{{"))

    def look(self) -> None:
        """Wait for a look at the store that began after all that was done."""
        looks = self.metric("kvatlas_pool_store_looks_total")
        self.await_(lambda: self.metric("kvatlas_pool_store_looks_total") >= looks + 2, "a look at the store")

    def compare(self, step: str) -> Result:
        """Compare what engine b, with an empty device, can load, with what the store's client finds."""
        self.look()
        keys = [key for block in self.blocks for key in keys_of(block)]
        found = dict(zip(keys, self.client.ask("exists", keys), strict=True))
        held = {block for block in self.blocks if all(found[key] == 1 for key in keys_of(block))}
        result = Result(step, len(self.prompts), len(held))
        for prompt in self.prompts:
            ends = range(1, len(prompt) + 1)
            wanted = next((end - 1 for end in ends if prompt[:end] not in held), len(prompt))
            loadable = self.scores(prompt).get("b", {}).get("loadable", [])
            said = max((part["to"] // BLOCK for part in loadable if part["source"] == "store"), default=0)
            if said != wanted:
                result.wrong.append(f"{step}: {said} blocks of {prompt}, not {wanted}")
        return result

    def all(self) -> Iterator[Result]:
        client, pick = self.client, self.random
        whole = pick.sample(self.blocks, k=len(self.blocks) * 7 // 10)
        parts = [pick.choice(keys_of(block)) for block in self.blocks if block not in whole and pick.random() < 0.5]
        client.ask("put", [key for block in whole for key in keys_of(block)] + parts, 1000)
        yield self.compare("put, some of them by one rank only")
        time.sleep(2 * LEASE)
        gone = [keys_of(block)[pick.randrange(RANKS)] for block in pick.sample(whole, k=len(whole) // 4)]
        listed = Result("removed at once after lists of keys: these give no lease", blocks=len(gone))
        self.look()
        refused = [code for code in client.ask("remove", gone) if code != 0]
        listed.wrong += [f"a list has kept the key from being removed: {code}" for code in refused]
        yield listed
        yield self.compare("removed, one rank's object each")
        client.ask("put", [key for block in self.blocks for key in keys_of(block)], 1000)
        yield self.compare("put again")
        time.sleep(2 * LEASE)
        filler = [tuple(pick.choices(range(2, 9), k=6)) for _ in range(3 * ROOM // VALUE // RANKS)]
        # Those that are asked for again and again stay.
        used = [key for block in pick.sample(self.blocks, k=len(self.blocks) // 2) for key in keys_of(block)]
        for at in range(0, len(filler), 16):
            client.ask("put", [key for block in filler[at : at + 16] for key in keys_of(block)], VALUE)
            client.ask("exists", used)
            time.sleep(0.05)
        time.sleep(2)
        evicted = self.compare("evicted, as the store is full")
        if not 0 < evicted.blocks < len(self.blocks):
            evicted.wrong.append(f"{evicted.blocks} of {len(self.blocks)} blocks are left: the step shows little")
        yield evicted
        client.ask("put", [key for block in self.blocks for key in keys_of(block)], 1000)
        yield self.compare("put again after evictions")
        client.ask("remove_all")
        yield self.compare("all removed, as one engine's reset does")
        client.ask("put", [key for block in self.blocks for key in keys_of(block)], 1000)
        before = self.compare("put again after a reset")
        if before.blocks != len(self.blocks):
            before.wrong.append("not all could be put: the next step shows nothing")
        yield before
        self.store.start()
        self.client = self.store.client()
        yield self.compare("another master, which knows nothing")


def tokens_of(prompt: tuple[int, ...]) -> list[int]:
    return [token for content in prompt for token in [1 + content] * BLOCK]


def run(home: Path, version: str, seed: int, echo: Callable[[str], None]) -> list[str]:
    """Run all steps. Returns what was wrong."""
    python = install(home, version, echo)
    log = home / f"mooncake-{version}.log"
    wrong: list[str] = []
    with ExitStack() as stack:
        store = Store(python, log, stack)
        store.start()
        engines = {name: stack.enter_context(Publisher("tcp://127.0.0.1:*", None)) for name in "ab"}
        streams = [f"{name}={it.endpoint},model={MODEL},block_size={BLOCK}" for name, it in engines.items()]
        pool = Pool("store", members=("a", "b"), mooncake=store.url, look_every=0.1)
        config = Config(http=HttpConfig(bind="127.0.0.1:0"), pools=(pool,))
        service = stack.enter_context(Service(streams=streams, config=config))
        for engine in engines.values():
            engine.wait_for_reader()
        trial = Trial(store, service, engines["a"], seed)
        if trial.metric("kvatlas_pool_store_publishes") != 0:
            wrong.append("the wheel publishes events now: try them here")
        for result in trial.all():
            echo(
                f"mooncake {version}: {result.step}: {result.blocks} blocks in the store, {result.prompts} prompts, "
                f"{len(result.wrong)} wrong"
            )
            wrong += result.wrong
        gone = trial.metric("kvatlas_pool_gone_blocks_total")
        echo(f"mooncake {version}: {gone:.0f} blocks were noticed to be gone")
    return wrong
