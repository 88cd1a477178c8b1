"""Engines in processes: ports, death and return, what they send themselves."""

import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from kvatlas.errors import InvalidArgumentError, SimulatedEngineError
from kvatlas.sim import TraceRequest, write_trace
from kvatlas.sim.server import Fleet, Query, ServerConfig, TrafficConfig
from kvatlas.sim.server.ports import free_block
from kvatlas.sim.server.traffic import prompt_tokens

from .conftest import FAST, PATIENCE, Subscriber, number, replay

SETTINGS = ServerConfig(engine=FAST)


def test_a_killed_engine_comes_back_on_its_ports_with_nothing() -> None:
    prompt = list(range(20))
    with Fleet(2, SETTINGS) as fleet, Subscriber(fleet[0].endpoint()) as live:
        engine, other = fleet.engines
        engine.complete(prompt, 1)
        other.complete(prompt, 1)
        url, pid = engine.url, engine.pid
        engine.kill()
        assert (fleet.dead, engine.alive, other.alive) == ([engine], False, True)
        with pytest.raises(SimulatedEngineError, match="refused") as dead:
            engine.state()
        assert dead.value.code == "unreachable"
        engine.respawn()
        assert (engine.url, fleet.dead) == (url, [])
        assert engine.pid != pid
        assert engine.match(prompt).held == 0
        assert other.match(prompt).held == 5
        assert replay(engine.replay_endpoint()) == []
        frames = live.join(lambda: engine.complete(list(range(100, 120)), 1))
        assert number(frames) < 10


@pytest.mark.slow
def test_engines_of_one_process_die_together() -> None:
    with Fleet(4, SETTINGS, processes=2) as fleet:
        assert len({engine.pid for engine in fleet.engines}) == 2
        fleet[0].kill()
        assert fleet.dead == [fleet[0], fleet[2]]
        with pytest.raises(SimulatedEngineError, match="kill it first"):
            fleet[1].respawn()
        fleet[2].respawn()
        assert fleet.dead == []


def test_chosen_ports_follow_each_other() -> None:
    http, events = free_block("127.0.0.1", 2), free_block("127.0.0.1", 8)
    with Fleet(2, replace(SETTINGS, ranks=2), http_port=http, events_port=events) as fleet:
        assert fleet.urls == [f"http://127.0.0.1:{http + i}" for i in range(2)]
        assert [engine.endpoint(rank) for engine in fleet.engines for rank in (0, 1)] == [
            f"tcp://127.0.0.1:{events + i}" for i in (0, 1, 4, 5)
        ]
        assert [engine.replay_endpoint(rank) for engine in fleet.engines for rank in (0, 1)] == [
            f"tcp://127.0.0.1:{events + i}" for i in (2, 3, 6, 7)
        ]
        with pytest.raises(InvalidArgumentError, match="no rank 2"):
            fleet[0].endpoint(2)


@pytest.mark.parametrize("which", ["http_port", "events_port"])
def test_a_taken_port_is_named(which: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        fleet = Fleet(1, SETTINGS, **{which: port})
        with pytest.raises(SimulatedEngineError, match=str(port)) as caught:
            fleet.start()
        assert caught.value.code == "port_in_use"
        assert fleet.dead == fleet.engines


@pytest.mark.slow
def test_a_fleet_ends_with_whoever_started_it() -> None:
    script = (
        "from kvatlas.sim.server import Fleet; import os, time\n"
        "fleet = Fleet(1); fleet.start(); print(fleet[0].pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert running(pid)
        parent.kill()
    deadline = time.monotonic() + PATIENCE
    while running(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_fleet_ends_by_sigterm() -> None:
    fleet = Fleet(1, SETTINGS)
    fleet.start()
    os.kill(fleet[0].pid, signal.SIGTERM)
    deadline = time.monotonic() + PATIENCE
    while not fleet.dead:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    fleet.close()


@pytest.mark.slow
def test_own_names_and_common_ones() -> None:
    prompt = list(range(8))

    def names(own: bool) -> set[bytes]:
        with Fleet(2, SETTINGS, own_names=own) as fleet:
            for engine in fleet.engines:
                engine.complete(prompt, 1)
                engine.wait_quiet()
            # All but the time at which it was sent.
            return {replay(engine.replay_endpoint())[0][-1][10:] for engine in fleet.engines}

    assert len(names(own=False)) == 1
    assert len(names(own=True)) == 2


def test_answers_to_many_questions_at_once() -> None:
    prompt = list(range(20))
    with Fleet(1, replace(SETTINGS, ranks=2)) as fleet:
        fleet[0].complete(prompt, 1, rank=1)
        queries = [Query(prompt), Query(prompt, rank=1), Query(prompt[:9], rank=1), Query(prompt, salt="x", rank=1)]
        assert [(truth.held, truth.usable) for truth in fleet[0].match_all(queries)] == [(0, 0), (5, 4), (2, 2), (0, 0)]


def test_the_engines_file(tmp_path: Path) -> None:
    path = tmp_path / "engines.toml"
    path.write_text("old")
    with Fleet(2, SETTINGS) as fleet:
        fleet.write_engines_file(path)
        assert tomllib.loads(path.read_text()) == {"engine": [{"url": url} for url in fleet.urls]}
    assert list(tmp_path.iterdir()) == [path]


def test_an_idle_fleet_says_nothing() -> None:
    with Fleet(1, SETTINGS) as fleet:
        [state] = fleet[0].wait_quiet()
        assert state.seq is None


@pytest.mark.slow
def test_engines_send_themselves_requests() -> None:
    fast = replace(SETTINGS, speed=200.0, engine=replace(FAST, blocks=2_000, block_size=16))
    with Fleet(4, fast, processes=2, traffic=TrafficConfig(request_rate=20.0)) as fleet:
        deadline = time.monotonic() + PATIENCE
        while not all(engine.state()[0].held > 10 for engine in fleet.engines):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_engines_send_themselves_a_trace_in_turns_and_again(tmp_path: Path) -> None:
    lines = [TraceRequest(i * 10, 600, 2, (2 * i, 2 * i + 1)) for i in range(4)]
    write_trace(tmp_path / "t.jsonl", lines)
    wide = replace(SETTINGS, engine=replace(FAST, blocks=1_000))
    with Fleet(2, wide, traffic=TrafficConfig(trace=str(tmp_path / "t.jsonl"))) as fleet:
        queries = [Query(prompt_tokens(line)) for line in lines]
        deadline = time.monotonic() + PATIENCE
        while True:
            held = [[truth.held for truth in engine.match_all(queries)] for engine in fleet.engines]
            if sum(map(sum, held)) == 4 * 150:
                break
            assert time.monotonic() < deadline, held
            time.sleep(0.02)
        assert sorted(held) == [[0, 150, 0, 150], [150, 0, 150, 0]]
        before = [engine.state()[0].copies for engine in fleet.engines]
        while [engine.state()[0].copies for engine in fleet.engines] == before:
            assert time.monotonic() < deadline  # the next round recomputes each prompt's last block
            time.sleep(0.02)


def test_a_trace_that_is_none_is_named(tmp_path: Path) -> None:
    fleet = Fleet(1, SETTINGS, traffic=TrafficConfig(trace=str(tmp_path / "none.jsonl")))
    with pytest.raises(SimulatedEngineError, match=r"none\.jsonl"):
        fleet.start()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Fleet(0), "at least 1 engine"),
        (lambda: Fleet(2, processes=3), "processes must be from 1 to 2"),
        (lambda: Fleet(100, http_port=65_500), "leaves no room"),
        (lambda: ServerConfig(ranks=0), "ranks must be from 1"),
        (lambda: ServerConfig(speed=0), "speed must be above 0"),
        (lambda: ServerConfig(dialect="sglang", hash_bytes=True), "SGLang always sends integers"),
        (lambda: ServerConfig(dialect="tgi"), "must be one of vllm, sglang"),  # type: ignore[arg-type]
        (lambda: ServerConfig(host="my-machine"), "must be an IP address"),
        (lambda: ServerConfig(loras=("sim-model",)), "another name"),
        (lambda: ServerConfig(ranks=4, events_port=6000, replay_port=6002), "at least 4 apart"),
    ],
)
def test_settings_that_cannot_be(make: "object", words: str) -> None:
    assert callable(make)
    with pytest.raises(InvalidArgumentError, match=words):
        make()


def test_settings_survive_json() -> None:
    settings = ServerConfig(loras=("a", "b"), engine=FAST, topic="x")
    assert ServerConfig.from_dict(settings.as_dict()) == settings
