"""A service that is killed, and begins again with its snapshot: as one that followed everything all the time."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.command import in_process
from tests.support.engine import Behaviour, Engine, Talk, head, reply
from tests.support.engine.replaying import BLOCK, ReplayingEngine
from tests.support.waiting import until

from kvatlas.errors import ConfigError, ServiceError
from kvatlas.service import Config, HttpConfig, Service
from kvatlas.service.config import SnapshotConfig
from kvatlas.service.peer import fetch

from .process import address_of, serving

DEADLINE = 60.0


def workers(address: str) -> dict[str, dict[str, Any]]:
    """The only stream of each worker."""
    listed = httpx.get(f"http://{address}/workers", timeout=DEADLINE).json()
    return {worker["instance_id"]: worker["streams"]["0"] for worker in listed}


def flags(engines: dict[str, ReplayingEngine]) -> list[str]:
    return [
        flag
        for name, engine in engines.items()
        for flag in (
            "--stream",
            f"{name}={engine.endpoint},replay_endpoint={engine.replay_endpoint},model=m,block_size={BLOCK}",
        )
    ]


class Process:
    """`kvatlas serve` with its log thrown away."""

    def __init__(self, *more: str) -> None:
        self.process = serving("--probe-interval", "0.5s", "--replay-timeout", "30s", *more)
        self.address, _ = address_of(self.process)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def metric(self, name: str) -> float:
        lines = httpx.get(f"http://{self.address}/metrics", timeout=DEADLINE).text.splitlines()
        return next((float(line.split()[-1]) for line in lines if line.startswith(f"{name} ")), 0.0)

    def saved(self) -> None:
        """Wait until a snapshot is written that was begun after this."""
        before = self.metric("kvatlas_snapshot_writes_total")
        until(lambda: self.metric("kvatlas_snapshot_writes_total") >= before + 2, "written")


@contextmanager
def following(engines: dict[str, ReplayingEngine], **more: Any) -> Iterator[Service]:
    streams = [flag for flag in flags(engines) if flag != "--stream"]
    with Service(streams=streams, config=Config(http=HttpConfig(bind="127.0.0.1:0"), **more)) as service:
        yield service


def is_through(address: str, engines: dict[str, ReplayingEngine]) -> bool:
    """True if the service has applied and trusts all: it may doubt an engine for seconds that has just restarted."""
    last = {name: engine.last_seq for name, engine in engines.items()}
    return all(stream["seq"] == last[name] and stream["trusted"] for name, stream in workers(address).items())


def equal(address: str, other: str, engines: dict[str, ReplayingEngine]) -> None:
    """Check that both have applied all, trust all, and hold the same: by their words, and block by block."""
    for engine in engines.values():
        engine.paused.set()
    until(lambda: is_through(address, engines) and is_through(other, engines), "through")
    ours, theirs = workers(address), workers(other)
    assert not any(stream["partial"] for stream in (*ours.values(), *theirs.values()))
    assert {name: it["fingerprints"] for name, it in ours.items()} == {
        name: it["fingerprints"] for name, it in theirs.items()
    }
    compared = compare("--deep", f"http://{address}", f"http://{other}")
    assert (compared.returncode, compared.stderr) == (0, ""), compared.stdout
    assert "block by block" in compared.stdout
    for engine in engines.values():
        engine.paused.clear()


def compare(*arguments: str) -> subprocess.CompletedProcess[str]:
    return in_process("compare", *arguments)


def test_killed_at_random_moments_it_is_as_if_it_had_been_there(tmp_path: Path) -> None:
    with ExitStack() as stack:
        # Their buffers last for 40 s: for as long as a process may take to start on a busy machine.
        engines = {f"w{seed}": stack.enter_context(ReplayingEngine(seed, keeps=800, rate=20)) for seed in range(3)}
        for engine in engines.values():
            engine.start()
        control = stack.enter_context(following(engines))
        control.wait_ready(DEADLINE)
        snapshots = ("--snapshot-dir", str(tmp_path), "--snapshot-every", "0.05s", *flags(engines))
        process = Process(*snapshots)
        stack.callback(lambda: process.kill())
        until(lambda: all(it["trusted"] for it in workers(process.address).values()), "live")
        # More than they keep: a late service without a snapshot does not learn all of it.
        for engine in engines.values():
            engine.publish(1_200)
        equal(process.address, control.address, engines)
        process.saved()
        moments = engines["w0"].cache.random
        for _ in range(2):
            time.sleep(moments.uniform(0, 0.4))  # a snapshot is begun each 0.05 s
            process.kill()
            process = Process(*snapshots)
            equal(process.address, control.address, engines)
            told = [it["snapshot"] for it in workers(process.address).values()]
            assert {(it["from"], it["outcome"]) for it in told} == {("disk", "kept")}
        # An engine restarts while no service runs; another's buffer turns over.
        process.saved()
        process.kill()
        engines["w1"].restart()
        engines["w1"].publish(50)
        engines["w2"].publish(1_000)
        process = Process(*snapshots)
        until(lambda: all(it["trusted"] for it in workers(process.address).values()), "live")
        until(lambda: all(it["snapshot"]["outcome"] != "proving" for it in workers(process.address).values()), "told")
        streams = workers(process.address)
        outcomes = {name: it["snapshot"]["outcome"] for name, it in streams.items()}
        assert outcomes == {"w0": "kept", "w1": "restarted", "w2": "turned_over"}
        assert not streams["w1"]["partial"]
        # The one that lost its blocks knows less than the one that did not, never more.
        for engine in engines.values():
            engine.paused.set()
        until(lambda: is_through(process.address, engines) and is_through(control.address, engines), "through")
        differing = json.loads(compare("--json", f"http://{process.address}", f"http://{control.address}").stdout)
        assert {(it["worker"], it["only"][0], it["other_content"]) for it in differing} <= {("w2", 0, 0)}


def test_a_new_replica_begins_with_a_running_one(tmp_path: Path) -> None:
    with ExitStack() as stack:
        engines = {"w0": stack.enter_context(ReplayingEngine(7, keeps=1_000, rate=50))}
        engines["w0"].start()
        first = stack.enter_context(following(engines))
        first.wait_ready(DEADLINE)
        engines["w0"].publish(2_000)
        until(lambda: workers(first.address)["w0"]["seq"] >= 1_999, "read")
        left = tmp_path / "kept" / "kvatlas-peer-killed"
        left.mkdir(parents=True)
        (left / "peer.snapshot").write_bytes(b"of a process that was killed meanwhile")
        peer = SnapshotConfig(peer=f"http://{first.address}", dir=left.parent)
        second = stack.enter_context(following(engines, snapshot=peer))
        second.wait_ready(DEADLINE)
        equal(second.address, first.address, engines)
        snapshot = workers(second.address)["w0"]["snapshot"]
        assert (snapshot["from"], snapshot["outcome"]) == ("peer", "kept")
        assert not left.exists()
        # Files compare as well, and a difference is told.
        files = [tmp_path / name for name in ("a", "b")]
        for file in files:
            with file.open("wb") as out:
                size = fetch(f"http://{first.address}", None, DEADLINE, out)
            assert size == file.stat().st_size
            engines["w0"].publish(200)
            until(lambda: workers(first.address)["w0"]["seq"] >= engines["w0"].last_seq - 50, "read")
        different = compare(str(files[0]), str(files[1]))
        assert (different.returncode, different.stderr) == (1, "")
        assert "1 rank of 1 differ" in different.stdout
        assert "w0" in different.stdout
        assert compare(str(files[0]), str(files[0])).returncode == 0


def test_a_peer_that_cannot_be_used_is_given_up() -> None:
    refusing = {"/snapshot": 404}
    with ExitStack() as stack:
        engines = {"w0": stack.enter_context(ReplayingEngine(8, keeps=1_000))}
        engines["w0"].start()
        peer = stack.enter_context(Engine(refusing))
        for url, timeout in ((peer.url, 30.0), ("http://127.0.0.1:9", 0.5)):
            config = SnapshotConfig(peer=url, peer_timeout=timeout)
            with following(engines, snapshot=config) as service:
                service.wait_ready(DEADLINE)
                assert "snapshot" not in workers(service.address)["w0"]
                metrics = httpx.get(f"{service.url}/metrics", timeout=DEADLINE).text
                assert "kvatlas_snapshots_refused_total 1\n" in metrics
        junk = {"/snapshot": "no snapshot at all"}
        other = stack.enter_context(Engine(junk))
        with following(engines, snapshot=SnapshotConfig(peer=other.url)) as service:
            service.wait_ready(DEADLINE)
            metrics = httpx.get(f"{service.url}/metrics", timeout=DEADLINE).text
            assert "kvatlas_snapshots_refused_total 1\n" in metrics


def bomb(size: int) -> bytes:
    """Zeros of this size, as a frame of zstd: a block of four bytes for each 128 KiB of them."""
    blocks = size >> 17
    last = [1 if at == blocks - 1 else 0 for at in range(blocks)]
    return b"\x28\xb5\x2f\xfd\x00\x38" + b"".join(
        (is_last | 1 << 1 | 1 << 20).to_bytes(3, "little") + b"\0" for is_last in last
    )


def endless(sent: Counter[str], *, in_parts: bool) -> Behaviour:
    """A snapshot without an end, as an answer that does not say how long it is, or as parts of very much."""
    part = f"content-range: bytes 0-{(8 << 20) - 1}/{1 << 50}", 'etag: "1"'

    async def act(talk: Talk) -> None:
        await talk.send(head("206 Partial Content", *part) if in_parts else head())
        while True:
            await talk.send(bytes(1 << 16))
            sent["bytes"] += 1 << 16

    return act


@pytest.mark.parametrize("what", ["bomb", "endless", "parts"])
def test_a_snapshot_of_a_peer_has_bounds(what: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        engines = {"w0": stack.enter_context(ReplayingEngine(8, keeps=1_000))}
        engines["w0"].start()
        sent: Counter[str] = Counter()
        snapshot = reply("200 OK", bomb(1 << 30)) if what == "bomb" else endless(sent, in_parts=what == "parts")
        assert len(bomb(1 << 30)) < 40_000
        peer = stack.enter_context(Engine({"/snapshot": snapshot}))
        process = Process("--peer-snapshot", peer.url, "--snapshot-max-bytes", "32MiB", *flags(engines))
        stack.callback(process.kill)
        until(lambda: process.metric("kvatlas_snapshots_refused_total") == 1, "refused")
        until(lambda: workers(process.address)["w0"]["trusted"], "read from the engine")
        assert peer.times("/snapshot")
        assert sent["bytes"] < 64 << 20
        status = Path(f"/proc/{process.process.pid}/status").read_text()
        peak = int(status.partition("VmHWM:")[2].split()[0]) >> 10
        assert peak < 500, f"{peak} MiB"


def test_snapshots_are_nobody_elses(tmp_path: Path) -> None:
    with ExitStack() as stack:
        engines = {"w0": stack.enter_context(ReplayingEngine(12, keeps=10_000))}
        engines["w0"].start()
        before = os.umask(0o022)
        stack.callback(os.umask, before)
        directory = tmp_path / "made" / "here"
        process = Process("--snapshot-dir", str(directory), "--snapshot-every", "0.05s", *flags(engines))
        stack.callback(process.kill)
        process.saved()
        modes = {path.name: path.stat().st_mode & 0o777 for path in (directory, *directory.iterdir())}
        assert modes.pop("here") == 0o700
        assert set(modes.values()) == {0o600}, modes


def test_the_parts_are_of_one_snapshot() -> None:
    with ExitStack() as stack:
        engines = {"w0": stack.enter_context(ReplayingEngine(9, keeps=1_000))}
        engines["w0"].start()
        service = stack.enter_context(following(engines))
        service.wait_ready(DEADLINE)
        url = f"{service.url}/snapshot"
        client = stack.enter_context(httpx.Client(timeout=DEADLINE))
        whole = client.get(url)
        size = len(whole.content)
        assert (whole.status_code, whole.headers["Accept-Ranges"]) == (200, "bytes")
        assert whole.headers["Content-Type"] == "application/zstd"
        tag = whole.headers["ETag"]
        parts = [
            client.get(url, headers={"Range": f"bytes={at}-{at + 99}", "If-Range": tag}) for at in range(0, size, 100)
        ]
        assert {part.status_code for part in parts} == {206}
        assert b"".join(part.content for part in parts) == whole.content
        assert parts[-1].headers["Content-Range"].endswith(f"-{size - 1}/{size}")
        gone = client.get(url, headers={"Range": "bytes=100-199", "If-Range": '"0123456789abcdef"'})
        assert (gone.status_code, gone.headers.get("Content-Range")) == (200, None)
        assert len(gone.content) == int(gone.headers["Content-Length"]) > 0
        beyond = client.get(url, headers={"Range": "bytes=999999999-"})
        assert (beyond.status_code, beyond.json()["code"]) == (416, "range_not_satisfiable")


def test_the_key_for_changes_is_needed(tmp_path: Path) -> None:
    config = Config(http=HttpConfig(bind="127.0.0.1:0", key="ask", admin_key="admin"))
    with Service(config=config) as service, (tmp_path / "x").open("wb") as out:
        with pytest.raises(ServiceError, match="status 403"):
            fetch(service.url, "ask", DEADLINE, out)
        assert fetch(service.url, "admin", DEADLINE, out) > 0


def test_a_full_disk_is_told_and_the_old_snapshot_stays(tmp_path: Path) -> None:
    with ExitStack() as stack:
        engines = {"w0": stack.enter_context(ReplayingEngine(11, keeps=10_000))}
        engines["w0"].start()
        process = Process("--snapshot-dir", str(tmp_path), "--snapshot-every", "0.05s", *flags(engines))
        stack.callback(process.kill)
        process.saved()
        # No file may grow beyond this: writing more fails as on a full disk.
        resource.prlimit(process.process.pid, resource.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY))

        def health() -> dict[str, Any]:
            answer = httpx.get(f"http://{process.address}/health", timeout=DEADLINE)
            assert answer.status_code == 200
            said: dict[str, Any] = answer.json()["snapshot"]
            return said

        until(lambda: health()["failed_writes"] > 0, "refused")
        assert "the one before it stays" in str(health()["error"])
        assert (tmp_path / "kvatlas.snapshot").stat().st_size > 64
        # The next try comes soon, and has a file for as long as it takes to fail.
        until(lambda: not (tmp_path / "kvatlas.snapshot.tmp").exists(), "the unfinished one is gone")
        assert process.metric("kvatlas_snapshot_failed_writes_total") > 0
        resource.prlimit(process.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        until(lambda: health()["error"] is None, "over")


def test_settings_that_make_no_sense(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"snapshot\.peer must be http://HOST:PORT, https://HOST:PORT, dns:NAME:PORT or"
    ):
        SnapshotConfig(peer="ftp://x")
    with pytest.raises(ConfigError, match=r"snapshot\.peer_key_file is for the service at snapshot\.peer"):
        SnapshotConfig(peer_key_file=tmp_path / "key")
    config = Config(http=HttpConfig(bind="127.0.0.1:0"), snapshot=SnapshotConfig(dir=tmp_path))
    with Service(config=config), pytest.raises(ServiceError, match="in use by another kvatlas"):
        Service(config=config)
    (tmp_path / "file").touch()
    config = Config(http=HttpConfig(bind="127.0.0.1:0"), snapshot=SnapshotConfig(dir=tmp_path / "file" / "x"))
    with pytest.raises(ServiceError, match=r"snapshot\.dir: cannot use"):
        Service(config=config)
