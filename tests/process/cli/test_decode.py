"""`kvatlas decode`."""

import base64
import gzip
import itertools
import json
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq
from tests.support.command import Run
from tests.support.engine import Publisher

from kvatlas.cli import decode, main
from kvatlas.cli.console import Interrupt
from kvatlas.wire import Cleared, Event, Removed, Stored, encode_batch

EVENTS: list[Event] = [
    Stored(
        [1, 2, 3, 4, 5, 6],
        None,
        [7] * 12,
        2,
        lora="ad",
        salt="secret",
        group_idx=0,
        kind="full_attention",
        session_id="x",
    ),
    Removed([-1, b"\xab\xcd"], tier="cpu"),
    Cleared(),
]  # fmt: skip
PAYLOAD = encode_batch(EVENTS, timestamp=1.5, rank=2)
PEOPLE = """\
time 1.500000  rank 2
  stored    6 blocks of 2 tokens in gpu after the beginning: 1, 2, 3, 4, and 2 more lora=ad salted group_idx=0 full_attention session=x
  removed   2 blocks from cpu: -1, abcd
  cleared   all blocks of the rank
"""  # noqa: E501
WITHOUT_ZMQ = "import sys; sys.modules['zmq'] = None; from kvatlas.cli import main; main()"


def frames(seq: int, payload: bytes = PAYLOAD, topic: bytes = b"kv@a") -> list[bytes]:
    return [topic, struct.pack(">Q", seq), payload]


def record(seq: int, **more: Any) -> str:
    return json.dumps({"type": "frames", "frames": [base64.b64encode(f).decode() for f in frames(seq)]} | more)


@pytest.mark.parametrize(
    "form",
    [
        PAYLOAD,
        PAYLOAD.hex().encode(),
        b"0x" + PAYLOAD.hex(" ").upper().encode() + b"\n",
        base64.b64encode(PAYLOAD),
        base64.encodebytes(PAYLOAD),
        gzip.compress(PAYLOAD),
    ],
    ids=["bytes", "hex", "spaced hex", "base64", "wrapped base64", "gzip"],
)
def test_a_payload_in_every_form(run: Run, tmp_path: Path, form: bytes) -> None:
    (tmp_path / "p").write_bytes(form)
    done = run("decode", "p")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == PEOPLE


def test_standard_input() -> None:
    command = [sys.executable, "-m", "kvatlas.cli", "decode"]
    done = subprocess.run(command, input=PAYLOAD, capture_output=True, check=True, timeout=60)
    assert done.stdout.decode() == PEOPLE


@pytest.mark.parametrize("compress", [False, True])
def test_a_recording(run: Run, tmp_path: Path, compress: bool) -> None:
    lines = ['{"type": "meta"}', record(3), "", record(4), '{"type": "truth", "token_ids": [1]}']
    lines += [record(0, type="reply", frames=["", *json.loads(record(9))["frames"]])]
    lines += [record(0, type="reply", frames=["", "", base64.b64encode(b"\xff" * 8).decode(), ""])]
    data = "\n".join(lines).encode()
    (tmp_path / "r").write_bytes(gzip.compress(data) if compress else data)
    done = run("decode", "r")
    assert (done.returncode, done.stderr) == (0, "")
    batches = [line for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert batches == [f"batch {seq}  time 1.500000  rank 2  topic kv@a" for seq in (3, 4, 9)]
    assert run("decode", "r", "--count", "1").stdout.count("batch") == 1


def test_a_recording_of_an_engine(run: Run, engine_streams: Path) -> None:
    done = run("decode", engine_streams / "sglang-0.5.23.jsonl.gz", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    batches = [json.loads(line) for line in done.stdout.splitlines()]
    assert [batch["seq"] for batch in batches] == list(range(426))
    assert sum(event["type"] == "stored" for batch in batches for event in batch["events"]) == 580


def test_json(run: Run, tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(PAYLOAD)
    (line,) = run("decode", "p", "--json").stdout.splitlines()
    stored = {
        "type": "stored", "block_hashes": [1, 2, 3, 4, 5, 6], "parent": None, "block_size": 2, "tokens": 12,
        "tier": "gpu", "medium": "GPU", "salted": True, "lora": "ad", "group_idx": 0, "kind": "full_attention",
        "session_id": "x",
    }  # fmt: skip
    removed = {"type": "removed", "block_hashes": [-1, "abcd"], "tier": "cpu", "medium": "CPU"}
    batch: dict[str, Any] = {"seq": None, "topic": "", "timestamp": 1.5, "rank": 2, "refused": []}
    assert json.loads(line) == {**batch, "events": [stored, removed, {"type": "cleared"}]}
    (line,) = run("decode", "p", "--json", "--tokens", "--salts").stdout.splitlines()
    assert json.loads(line)["events"][0] == {**stored, "token_ids": [7] * 12, "salt": "secret"}


def test_no_more_than_asked(run: Run, tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(PAYLOAD)
    for options in ([], ["--json"]):
        text = run("decode", "p", *options).stdout
        assert "secret" not in text
        assert "7,7" not in text
        assert "7, 7" not in text
    assert "tokens=[7,7" in run("decode", "p", "--tokens").stdout
    assert "salt=secret" in run("decode", "p", "--salts").stdout


def test_what_is_wrong_is_shown(run: Run, tmp_path: Path) -> None:
    # Two events are lost with the cut one, and the terminal's cursor stays where it is.
    (tmp_path / "p").write_bytes(encode_batch([Removed([1], medium="x\x1b[2J"), *EVENTS], timestamp=0)[:-60])
    done = run("decode", "p")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert "refused   event 2 and 1 more: truncated: the payload ends inside the event" in done.stdout
    (line,) = run("decode", "p", "--json").stdout.splitlines()
    assert json.loads(line)["refused"][0]["reason"] == "truncated"


def test_what_is_no_batch_does_not_stop_the_rest(run: Run, tmp_path: Path) -> None:
    bad = json.loads(record(1))
    bad["frames"][2] = base64.b64encode(b"\xc0").decode()
    (tmp_path / "r").write_text("\n".join([record(0), json.dumps(bad), record(2)]))
    done = run("decode", "r")
    assert done.returncode == 1
    assert done.stderr.startswith("batch 1: not a batch: nil")
    assert "batch 0 " in done.stdout
    assert "batch 2 " in done.stdout


@pytest.mark.parametrize(
    ("content", "args", "message"),
    [
        (None, [], "cannot read p: No such file"),
        (b"", [], "p is empty"),
        (b"\n \n", [], "p is empty"),
        (b"what is this?", [], "p is neither a payload (raw, hexadecimal or base64) nor a recording"),
        (b"\x1f\x8b nothing", [], "cannot read p"),
        (gzip.compress(PAYLOAD)[:-9], [], "cannot read p"),
        (b'{"type": "frames"}', [], "p, line 1: not a record of frames"),
        (b'{"type": "meta"}\n{"type', [], "p, line 2: not a record of frames"),
        (b'{"type": "meta"}', [], "p: it contains no batches"),
        (PAYLOAD, ["--topic", "x"], "--replay-endpoint and --topic require an endpoint"),
        (PAYLOAD, ["--count", "0"], "0 is not in the range"),
    ],
)
def test_wrong_input_is_named(run: Run, tmp_path: Path, content: bytes | None, args: list[str], message: str) -> None:
    if content is not None:
        (tmp_path / "p").write_bytes(content)
    done = run("decode", "p", *args)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stdout == ""


def test_wrong_endpoints(run: Run) -> None:
    for args, message in (
        (["http://host:1"], "'http://host:1' is not an endpoint: use tcp://HOST:PORT or ipc://PATH"),
        (["tcp://nowhere"], "cannot connect to tcp://nowhere"),
        (["tcp://127.0.0.1:1", "--replay-endpoint", "127.0.0.1:5"], "'127.0.0.1:5' is not of the form tcp://host:port"),
        (["tcp://127.0.0.1:1", "--replay-endpoint", "tcp://x"], "cannot connect to tcp://x"),
    ):
        done = run("decode", *args)
        assert done.returncode == 2
        assert message in done.stderr


def test_without_pyzmq(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_ZMQ, "decode", "tcp://127.0.0.1:1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert done.stderr == "Error: reading from an endpoint needs pyzmq: pip install 'kvatlas[sim]'\n"
    (tmp_path / "p").write_bytes(PAYLOAD)
    command[-1] = str(tmp_path / "p")
    assert subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout == PEOPLE


@contextmanager
def publishing(numbers: Iterable[int] | None = None) -> Iterator[Publisher]:
    """An engine that publishes the same batch again and again, from number 3 on, and replays the first five."""
    ended = threading.Event()
    with Publisher(replay_endpoint="tcp://127.0.0.1:*", topic=b"kv@a") as publisher:

        def publish() -> None:
            for number in numbers or itertools.count(3):
                if ended.wait(0.01):
                    break
                publisher.send(number, PAYLOAD)

        for _ in range(5):
            publisher.publish(PAYLOAD, live=False)
        thread = threading.Thread(target=publish)
        thread.start()
        try:
            yield publisher
        finally:
            ended.set()
            thread.join()


def test_a_live_endpoint(run: Run) -> None:
    with publishing() as engine:
        lines = run("decode", engine.endpoint, "--count", 3, "--json", "--topic", "kv@").stdout.splitlines()
    batches = [json.loads(line) for line in lines]
    first = batches[0]["seq"]
    assert [batch["seq"] for batch in batches] == [first, first + 1, first + 2]
    assert {batch["topic"] for batch in batches} == {"kv@a"}


def test_replay_first_and_nothing_twice(run: Run) -> None:
    with publishing() as engine:
        done = run("decode", engine.endpoint, "--replay-endpoint", engine.replay_endpoint, "--count", 8, "--json")
    numbers = [json.loads(line)["seq"] for line in done.stdout.splitlines()]
    assert numbers[:5] == [0, 1, 2, 3, 4]
    assert numbers == sorted(set(numbers))
    assert len(numbers) == 8


def test_gaps_and_new_beginnings_are_told(run: Run) -> None:
    with publishing(itertools.cycle([5, 8])) as engine:
        done = run("decode", engine.endpoint, "--count", 4, "--json")
    assert "batches 6 to 7 are missing" in done.stderr
    assert "batch 5 after 8: the engine has restarted" in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_ends_it() -> None:
    with publishing() as engine:
        command = [sys.executable, "-u", "-m", "kvatlas.cli", "decode", engine.endpoint, "--json"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["rank"] == 2
        os.kill(process.pid, signal.SIGINT)
        # Read on, so that it is not stopped by a full pipe instead.
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")


def test_ctrl_c_ends_a_wait_for_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Typing:
        buffer: "Typing"

        def read(self) -> bytes:
            signal.raise_signal(signal.SIGINT)
            return b""

    stdin = Typing()
    stdin.buffer = stdin
    monkeypatch.setattr(sys, "stdin", stdin)
    with pytest.raises(SystemExit) as ended:
        main(["decode"])
    assert ended.value.code == 130
    assert capsys.readouterr() == ("", "")


def test_silence_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class FewLooks(Interrupt):
        looks = 0

        def __call__(self) -> bool:
            self.looks += 1
            return self.looks > 3

    monkeypatch.setattr(decode, "_QUIET_SECONDS", 0.0)
    with Publisher() as silent:
        assert not list(decode._subscribe(silent.endpoint, "kv", None, FewLooks()))
    words = f"nothing received from {silent.endpoint} under topics that begin with 'kv' yet; still waiting\n"
    assert capsys.readouterr().err == words


@pytest.mark.slow
def test_a_silent_replay_is_not_waited_for(run: Run) -> None:
    with publishing() as engine, zmq.Context() as context, context.socket(zmq.ROUTER) as silent:
        port = silent.bind_to_random_port("tcp://127.0.0.1")
        done = run("decode", engine.endpoint, "--replay-endpoint", f"tcp://127.0.0.1:{port}", "--count", 1)
    assert "did not answer completely; continuing with live events" in done.stderr
    assert "rank 2" in done.stdout
