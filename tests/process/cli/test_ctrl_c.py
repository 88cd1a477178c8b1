"""Ctrl-C in a terminal: each command ends with status 130, without a traceback, and leaves no process behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kvatlas.cli import COMMANDS

pytest.importorskip("zmq")
pytest.importorskip("aiohttp")

from kvatlas.sim.server.ports import free_block

PATIENCE = 120.0
# What is started in the background of a shell inherits that interrupts are ignored.
CODE = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\nfrom kvatlas.cli import main\nmain()"


@dataclass
class HungServer:
    """A server that accepts connections and never says a word."""

    asked: threading.Event = field(default_factory=threading.Event)
    socket: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))

    def __post_init__(self) -> None:
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        held = []
        with suppress(OSError):
            while True:
                held.append(self.socket.accept()[0])
                self.asked.set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.socket.getsockname()[1]}"


@dataclass
class Command:
    """A command in a terminal of its own."""

    process: subprocess.Popen[str]
    hung: HungServer
    folder: Path
    log: str = ""

    def reads_errors(self, words: str) -> None:
        """Waits until its log has some words."""
        assert self.process.stderr is not None
        while words not in self.log:
            line = self.process.stderr.readline()
            assert line, self.log
            self.log += line

    def reads_output(self, words: str) -> None:
        """Waits until it has printed some words."""
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            if words in line:
                return
        raise AssertionError(self.process.communicate()[1])

    def asks(self) -> None:
        """Waits until it has connected to the server that does not answer."""
        assert self.hung.asked.wait(PATIENCE)

    def reads_input(self) -> None:
        """Waits until it reads its standard input, which does not end: a pipe has not so much room."""
        assert self.process.stdin is not None
        row = json.dumps({"timestamp": 0, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]})
        self.process.stdin.write(f"{row}\n" * 10_000)
        self.process.stdin.flush()

    def has_children(self) -> None:
        """Waits until it has started a process."""
        while not Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text():
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.002)

    def left(self) -> list[str]:
        """The processes of its session that are there."""
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                name, _, rest = path.read_text().rpartition(")")
                state, _parent, _group, session = rest.split()[:4]
                if int(session) == self.process.pid and state != "Z":
                    found.append(name)
        return found


Wait = Callable[[Command], None]
HUNG, URL = "{hung}", "http://{hung}"
FREE = free_block("127.0.0.1", 3)
PORTS = ("--grpc-port", f"{FREE}", "--grpc-health-port", f"{FREE + 1}", "--metrics-port", f"{FREE + 2}")
CASES: dict[str, tuple[list[str], Wait]] = {
    "router": (["--bind", "127.0.0.1:0", "--engine", URL, "--tokenizer", "none"], Command.asks),
    "epp": (
        ["--bind", "127.0.0.1:0", *PORTS, "--secure-serving=false", "--engine", URL, "--tokenizer", "none"],
        Command.asks,
    ),
    "engines list": (["--url", URL], Command.asks),
    "router --check": (["--engine", URL, "--tokenizer", "none"], Command.asks),
    "serve": (["--bind", "127.0.0.1:0"], lambda it: it.reads_errors("listening")),
    "relay": (["--bind", "127.0.0.1:0", "--publish", "nats://{hung}"], Command.asks),
    "top": (["--url", URL], Command.asks),
    "check": (["--url", URL], Command.asks),
    "query": (["--url", URL, "--tokens", "1,2,3", "--model", "m"], Command.asks),
    "workers": (["--url", URL], Command.asks),
    "compare": ([URL, URL], Command.asks),
    "decode": (["tcp://{hung}"], Command.asks),
    "simulate": (["--engines", "2", "--json"], lambda it: it.reads_output("engine-1")),
    "simulate --idle": (["--engines", "4"], Command.has_children),
    "simulate --trace": (["-", "--engines", "1"], Command.reads_input),
    "replay": (["-"], Command.reads_input),
    "replay --requests": (["100000", "--policy", "own:Slow"], lambda it: it.reads_errors("chooses")),
    "plan": (["-"], Command.reads_input),
    "plan --router": ([URL], Command.asks),
    "trace": (["-"], Command.reads_input),
    "demo": (["--engines", "2"], lambda it: it.reads_output("Starting")),
    "demo --policy": (["kvatlas", "--engines", "4"], Command.has_children),
    "bench run": (["--window", "60s", "--index", "block-index"], Command.has_children),
    "bench grow": ([], Command.has_children),
}
OWN = """
import sys, time
class Slow:
    def choose(self, request, candidates):
        print("chooses", file=sys.stderr, flush=True)
        time.sleep(0.1)
        return 0
"""


@pytest.fixture
def hung() -> Iterator[HungServer]:
    server = HungServer()
    yield server
    server.socket.close()


def test_every_command_is_here() -> None:
    assert {case.split()[0] for case in CASES} == set(COMMANDS)


@pytest.mark.parametrize("case", CASES)
def test_ctrl_c(case: str, hung: HungServer, tmp_path: Path) -> None:
    args, wait = CASES[case]
    (tmp_path / "own.py").write_text(OWN)
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", CODE, *case.split(), *(arg.format(hung=hung.address) for arg in args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        cwd=tmp_path,
        start_new_session=True,
    )
    command = Command(process, hung, tmp_path)
    try:
        wait(command)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        # Its input stays open.
        status = process.wait(PATIENCE)
        _, errors = process.communicate(timeout=PATIENCE)
        said = command.log + errors
        assert (status, "Traceback" in said, "Exception ignored" in said) == (130, False, False), said
        assert command.left() == []
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
