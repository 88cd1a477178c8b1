"""Coding agents, run as programs that are given a task and print what the model says."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.process.router.running import Router, wait_until

from . import installing
from .answers import Engines, wait_for_engines
from .expected import MODEL, REFUSAL, TEXT, order

# Seconds that an agent may take for one task: some retry for a while.
LIMIT = 180.0
CODEX = """\
model_provider = "router"
[model_providers.router]
name = "router"
base_url = "{base}/v1"
env_key = "KEY"
wire_api = "responses"
"""


@dataclass
class Agent:
    """A program for the command line."""

    name: str
    version: str
    command: list[str]
    # Where it finds programs, Node among them.
    path: str

    def start(self, task: str, base: str, home: Path, model: str = MODEL) -> subprocess.Popen[str]:
        """Starts it with a home directory of its own."""
        (home / ".codex").mkdir(exist_ok=True)
        (home / ".codex" / "config.toml").write_text(CODEX.format(base=base), encoding="utf-8")
        environment = {
            "PATH": self.path,
            "HOME": str(home),
            "KEY": "unused",
            "ANTHROPIC_BASE_URL": base,
            "ANTHROPIC_AUTH_TOKEN": "unused",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_MAX_RETRIES": "2",
        }
        return subprocess.Popen(
            [*self.command, "--model", model, task],
            cwd=home,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, task: str, base: str, home: Path, model: str = MODEL) -> str:
        """The text that it prints."""
        process = self.start(task, base, home, model)
        try:
            return process.communicate(timeout=LIMIT)[0]
        finally:
            kill(process)


def found(folder: Path) -> list[Agent]:
    """The agents that were installed."""
    modules = folder / "node_modules"
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    path = installing.path(folder)
    agents = []
    # Its package has the program for this machine in another one, from where a script would take it.
    claude = modules / "@anthropic-ai" / f"claude-code-linux-{machine}" / "claude"
    codex = modules / ".bin" / "codex"
    if claude.exists():
        command = [str(claude), "-p"]
        agents.append(Agent("Claude Code", version(modules / "@anthropic-ai/claude-code"), command, path))
    if codex.exists():
        command = [str(codex), "exec", "--skip-git-repo-check"]
        agents.append(Agent("Codex CLI", version(modules / "@openai/codex"), command, path))
    return agents


def version(package: Path) -> str:
    found: str = json.loads((package / "package.json").read_text(encoding="utf-8"))["version"]
    return found


def cases(agent: Agent, router: Router, engines: Engines) -> Iterator[tuple[str, str, str | None]]:
    """The cases of an agent: the name, the tag of the prompt, and the problem if there is one."""
    base = f"http://127.0.0.1:{router.port}"
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)

        def says(words: str, task: str, model: str = MODEL) -> str | None:
            wait_for_engines(router)
            said = agent.run(task, base, home, model)
            return None if words in said else f"it does not say {words!r}: {said[-500:]!r}"

        yield "stream", "", says(TEXT, "Say hello")
        task, tag = order("slow")
        yield "cancelled", tag, interrupt(agent.start(task, base, home), engines, tag)
        task, tag = order("busy-3")
        yield "retried", tag, says(TEXT, task)
        task, tag = order("refuse")
        yield "refused", tag, says(REFUSAL, task)
        yield "unknown model", "", says("nobodys", "Say hello", "nobodys")
        task, tag = order("cut")
        # Both ask again, several times. Each puts the end into words of its own.
        yield "broken off", tag, says("engine e" if agent.name == "Claude Code" else "stream disconnected", task)


def interrupt(process: subprocess.Popen[str], engines: Engines, tag: str) -> str | None:
    """Presses Ctrl-C while the answer comes."""
    try:
        wait_until(lambda: engines.tries[tag] > 0, "the engine has the request", LIMIT)
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=LIMIT)
    except (AssertionError, subprocess.TimeoutExpired) as error:
        return str(error)
    finally:
        kill(process)
    return None


def kill(process: subprocess.Popen[str]) -> None:
    """Ends a program with all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
