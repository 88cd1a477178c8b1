"""`kvatlas workers`, asked of a real service."""

import dataclasses
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console
from tests.support.command import Run
from tests.support.engine import Engine, vllm

from kvatlas.cli.workers import _COUNTERS, _shown
from kvatlas.service import Config, DiscoveryConfig, HttpConfig, Service
from kvatlas.sim import EngineConfig
from kvatlas.sim.server import Fleet, ServerConfig

CONFIG = Config(http=HttpConfig(bind="127.0.0.1:0"))


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """One that follows an engine with two ranks, and a worker that is not there."""
    config = EngineConfig(block_size=4, blocks=128, prefill_rate=1e6, decode_rate=1e4)
    with (
        Fleet(1, ServerConfig(engine=config, speed=20.0, model="m", ranks=2)) as fleet,
        Service([f"a={fleet[0].url}"], config=CONFIG) as service,
    ):
        fleet[0].complete(range(1, 13), 1, rank=1)
        fleet[0].wait_quiet()
        service.wait_ready(60)
        deadline = time.monotonic() + 60
        while service.workers()[0].streams[1].blocks < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        service.register("gone", "tcp://127.0.0.1:9", model="n", block_size=16, routing_group="g")
        # It is tried, which fails.
        while not all(
            stream.last_error for worker in service.workers() if worker.worker == "gone" for stream in worker.streams
        ):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield service


def test_a_table(run: Run, service: Service) -> None:
    done = run("workers", "--url", service.url, "--model", "m")
    assert done.returncode == 0, done.stderr
    words, header, first, second = done.stdout.splitlines()
    assert words.startswith("1 worker, 2 streams, 2 trusted; ready, waiting for gone, rank 0")
    names = [
        "worker",
        "rank",
        "state",
        "trusted",
        "epoch",
        "seq",
        "lag",
        "blocks",
        "gaps",
        "lost",
        "refused",
        "unlinked",
    ]
    assert header.split() == names
    assert first.split()[:4] == ["a", "0", "live", "yes"]
    assert second.split()[:4] == ["a", "1", "live", "yes"]
    assert second.split()[-5:] == ["3", "0", "0", "0", "0"]


def test_several_keyspaces_and_what_is_wrong(run: Run, service: Service) -> None:
    done = run("workers", "--url", service.url)
    assert "2 workers, 3 streams, 2 trusted" in done.stdout
    # It was tried, and its last error is told below the table.
    line, error = (line for line in done.stdout.splitlines() if line.startswith("gone"))
    # What is not trusted comes first.
    assert done.stdout.splitlines()[2] == line
    assert error == "gone rank 0: cannot connect"
    assert line.split()[:6] == ["gone", "0", "n", "(g)", "connecting", "no"]


def test_nothing_is_trusted(run: Run, service: Service) -> None:
    done = run("workers", "--url", service.url, "--routing-group", "g", "--model", "n")
    assert done.stdout.startswith("1 worker, 1 stream, NONE TRUSTED: queries find nothing."), done.stdout


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"refused": {"block_size": 93}}, "misconfigured"),
        ({"refused": {"unknown_event": 93}, "counters": {"lost_batches": 54}}, "refusing"),
        ({"partial": True, "counters": {"lost_batches": 54}}, "partial"),
    ],
)
def test_a_live_stream_that_is_not_well(service: Service, changes: dict[str, Any], word: str) -> None:
    [worker] = [worker for worker in service.workers() if worker.worker == "a"]
    well, ill = worker.streams
    sick = dataclasses.replace(worker, streams=(well, dataclasses.replace(ill, **changes)))
    out = Console(file=io.StringIO(), width=300)
    with service.client() as client:
        out.print(_shown(out, [sick], client.ready()))
    assert isinstance(out.file, io.StringIO)
    _, _, first, second, advice = out.file.getvalue().splitlines()
    assert first.split()[:4] == ["a", "1", "live", word]
    assert second.split()[:4] == ["a", "0", "live", "yes"]
    assert advice.startswith(f"a rank 1: {word}: ")
    assert advice.endswith(f"docs/runbooks/{word}.md")


def test_json(run: Run, service: Service) -> None:
    data = json.loads(run("workers", "--url", service.url, "--json", "--routing-group", "g", "--model", "n").stdout)
    assert [worker["worker"] for worker in data] == ["gone"]
    assert data[0]["streams"][0]["endpoint"] == "tcp://127.0.0.1:9"
    assert "gaps" in data[0]["streams"][0]["counters"]


def test_nobody_registered(run: Run) -> None:
    with Service(config=CONFIG) as service:
        done = run("workers", "--url", service.url)
        assert (done.returncode, done.stdout) == (0, f"{service.url} has no workers.\n")
        assert json.loads(run("workers", "--url", service.url, "--json").stdout) == []


def test_nobody_of_that_name(run: Run, service: Service) -> None:
    done = run("workers", "--url", service.url, "--model", "o")
    assert (done.returncode, done.stdout) == (0, f"{service.url} has no workers for model 'o'; it has models m, n.\n")
    done = run("workers", "--url", service.url, "--model", "m", "--routing-group", "h")
    words = "has no workers for model 'm' in routing group 'h'; it has routing groups default, g."
    assert done.stdout == f"{service.url} {words}\n"


def test_a_narrow_terminal(service: Service) -> None:
    """Columns that say nothing go, and names are whole."""
    gaps = {"gaps": 3}
    fleet = [
        dataclasses.replace(worker, worker=f"a-pod-{worker.worker}", routing_group="default", model="m")
        for worker in service.workers()
    ]
    streams = [dataclasses.replace(stream, counters=gaps) for stream in fleet[0].streams]
    fleet[0] = dataclasses.replace(fleet[0], streams=tuple(streams))
    for width, header in (
        (70, ["worker", "rank", "state", "trusted", "epoch", "seq", "lag", "blocks", "gaps"]),
        (120, ["worker", "rank", "state", "trusted", "epoch", "seq", "lag", "blocks", *_COUNTERS]),
    ):
        out = Console(width=width, file=io.StringIO())
        out.print(_shown(out, fleet, service.client().ready()))
        lines = out.file.getvalue().splitlines()  # type: ignore[attr-defined]
        assert all(len(line) <= width for line in lines)
        words, first, *rest = [line for line in lines if not line.startswith(("2 workers", "(connecting)"))]
        assert words.split() == header
        assert first.startswith("a-pod-gone ")
        assert rest[0].startswith("a-pod-a ")


def test_nobody_there_is_one_line(run: Run) -> None:
    for flags in ((), ("--watch",), ("--json",)):
        done = run("workers", "--url", "http://127.0.0.1:9", *flags)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == (
            "Error: http://127.0.0.1:9 cannot be reached: Connection refused: start `kvatlas serve` there, "
            "or set --url or KVATLAS_URL to its address\n"
        )


@pytest.mark.parametrize("flags", [("--json",), ()])
def test_watching_until_ctrl_c(service: Service, flags: tuple[str, ...]) -> None:
    command = [
        sys.executable,
        "-m",
        "kvatlas.cli",
        "workers",
        "--url",
        service.url,
        "--watch",
        "--interval",
        "0.1",
        *flags,
    ]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        # What is started in the background of a shell inherits that interrupts are ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        if flags:
            for _ in range(3):
                assert len(json.loads(process.stdout.readline())) == 2
        else:
            for _ in range(2):
                while not process.stdout.readline().startswith("2 workers, 3 streams"):
                    assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "Traceback" not in errors


def test_engines_that_are_not_registered(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = vllm() | {"/kv_event_sources": {}}
    discovery = DiscoveryConfig(interval=0.1, timeout=60, request_timeout=30)
    config = Config(http=CONFIG.http, discovery=discovery)
    with Engine(silent) as first, Engine({}) as other, Service(config=CONFIG) as empty:
        with Service([f"pod-a={first.url}", other.url], config=config) as service:
            deadline = time.monotonic() + 60
            while service.waiting()["holds"]:  # type: ignore[index]
                assert time.monotonic() < deadline
                time.sleep(0.01)
            done = run("workers", "--url", service.url)
            assert done.returncode == 0, done.stderr
            words = " ".join(done.stdout.split())
            name = other.url.removeprefix("http://")
            assert words.startswith(
                f"{service.url} has no workers; not ready; not registered: {name} (unusable), pod-a (no_events)."
            )
            told = rf"not registered: pod-a, {first.url}, no events for [0-9,.]+ m?s: it publishes no KV events: start"
            assert re.search(told, words)
            assert re.search(rf"not registered: {other.url}, unusable for [0-9,.]+ m?s: it has none of the HTTP", words)
            # Beside workers, and in a narrow terminal.
            service.register("here", "tcp://127.0.0.1:9", model="m", block_size=16)
            monkeypatch.setenv("COLUMNS", "60")
            done = run("workers", "--url", service.url)
            assert done.stdout.startswith("1 worker, 1 stream, 0 trusted; ")
            assert max(map(len, done.stdout.splitlines())) <= 60
            assert "no events for" in " ".join(done.stdout.split())
            assert json.loads(run("workers", "--url", service.url, "--json").stdout)[0]["worker"] == "here"
        assert run("workers", "--url", empty.url).stdout.strip().endswith("has no workers.")
