"""`kvatlas query`, asked of a real service."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.command import Run
from tests.support.engine import Engine

from kvatlas import content_hashes
from kvatlas.cli.console import console
from kvatlas.cli.query import _print
from kvatlas.client import Answer, WorkerDepth
from kvatlas.service import Config, HttpConfig, Service
from kvatlas.sim import EngineConfig
from kvatlas.sim.server import Fleet, ServerConfig

BLOCK = 4
PROMPT = list(range(1, 13))
CONFIG = Config(http=HttpConfig(bind="127.0.0.1:0"))


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """One that follows two simulated engines: one holds all of the prompt, the other two blocks."""
    config = EngineConfig(block_size=BLOCK, blocks=128, prefill_rate=1e6, decode_rate=1e4)
    with (
        Fleet(2, ServerConfig(engine=config, speed=20.0, model="m"), processes=1) as fleet,
        Service([f"{engine.name}={engine.url}" for engine in fleet.engines], config=CONFIG) as service,
    ):
        fleet[0].complete(PROMPT, 1)
        fleet[1].complete(PROMPT[:9], 1)
        fleet[0].complete(PROMPT[:9], 1, salt="s")
        for engine in fleet.engines:
            engine.wait_quiet()
        service.wait_ready(60)
        client, deadline = service.client(), time.monotonic() + 60
        while client.query(tokens=PROMPT, model="m").scores() != {"engine-0": 3, "engine-1": 2} or not (
            client.query(tokens=PROMPT, model="m", salt="s").workers
        ):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield service


@pytest.fixture
def asks(run: Run, service: Service, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("KVATLAS_URL", service.url)
    return lambda *args: run("query", *args)


def listed(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))


def test_a_table(asks: Run) -> None:
    done = asks("--tokens", listed(PROMPT))
    assert done.returncode == 0, done.stderr
    assert "12 tokens for m, in blocks of 4" in done.stdout
    header, first, second = done.stdout.splitlines()[1:4]
    assert header.split() == ["worker", "rank", "tokens", "blocks", "prompt", "usable", "state", "lag"]
    assert first.split()[:8] == ["engine-0", "0", "12", "3", "100.0", "%", "8", "live"]
    assert second.split()[:8] == ["engine-1", "0", "8", "2", "66.7", "%", "8", "live"]
    assert done.stderr == ""


def test_other_ways_to_say_the_prompt(asks: Run, tmp_path: Path, service: Service) -> None:
    (tmp_path / "t.json").write_text(json.dumps(PROMPT))
    (tmp_path / "t.txt").write_text("\n".join(map(str, PROMPT)))
    hashes = listed([int(h) for h in content_hashes(PROMPT, BLOCK)])
    ways: tuple[tuple[str, str], ...] = (
        ("--tokens-file", "t.json"),
        ("--tokens-file", "t.txt"),
        ("--content-hashes", hashes),
    )
    for how in ways:
        data = json.loads(asks(*how, "--json", "--model", "m").stdout)
        assert {worker["worker"]: worker["tokens"] for worker in data["workers"]} == {"engine-0": 12, "engine-1": 8}
        assert (data["model"], data["routing_group"], data["block_size"]) == ("m", "default", 4)
        assert (data["unit"], data["depth"], data["length"]) == ("blocks", 3, 3)
        assert data["prompt_tokens"] == (None if how[0] == "--content-hashes" else 12)
    command = [sys.executable, "-m", "kvatlas.cli", "query", "--tokens-file", "-", "--json"]
    done = subprocess.run(command, input="1 2 3 4", capture_output=True, text=True, check=True, env=os.environ)
    assert [worker["tokens"] for worker in json.loads(done.stdout)["workers"]] == [4, 4]


def test_salt_top_k_and_among(asks: Run) -> None:
    data = json.loads(asks("--tokens", listed(PROMPT), "--salt", "s", "--json").stdout)
    assert [(worker["worker"], worker["tokens"]) for worker in data["workers"]] == [("engine-0", 8)]
    data = json.loads(asks("--tokens", listed(PROMPT), "--top-k", 1, "--json").stdout)
    assert [worker["worker"] for worker in data["workers"]] == ["engine-0"]
    data = json.loads(asks("--tokens", listed(PROMPT), "--among", "engine-1,engine-7", "--json").stdout)
    assert [worker["worker"] for worker in data["workers"]] == ["engine-1"]
    assert "No worker holds the first block." in asks("--tokens", listed(PROMPT), "--lora", "x").stdout
    assert "No worker holds the first block." in asks("--tokens", "9,9,9,9").stdout


def test_a_text(asks: Run, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = {str(number): number for number in range(20)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="0"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    for name in ("tokenizer.json", "."):
        data = json.loads(asks("--text", "1 2 3 4 5", "--tokenizer", name, "--json").stdout)
        assert (data["prompt_tokens"], data["workers"][0]["tokens"]) == (5, 4)
    (tmp_path / "bad.json").write_text("{}")
    done = asks("--text", "1", "--tokenizer", "bad.json")
    assert done.returncode == 2
    assert done.stderr.startswith("Error: cannot read bad.json: ")
    assert done.stderr.count("\n") == 1


def test_a_chat(asks: Run, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    pytest.importorskip("jinja2")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({str(n): n for n in range(20)}, unk_token="0"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }} {% endfor %}")
    messages = [{"role": "system", "content": "1 2 3"}, {"role": "user", "content": [{"type": "text", "text": "4 5"}]}]
    for content in (messages, {"model": "m", "messages": messages}):
        (tmp_path / "chat.json").write_text(json.dumps(content))
        data = json.loads(asks("--chat", "chat.json", "--tokenizer", ".", "--json").stdout)
        assert (data["prompt_tokens"], data["workers"][0]["tokens"]) == (5, 4)
    for text, message in (
        ("{", "is not JSON"),
        ("3", "must be a JSON list of messages"),
        ("[]", "at least one message"),
    ):
        (tmp_path / "bad.json").write_text(text)
        done = asks("--chat", "bad.json", "--tokenizer", ".")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert message in done.stderr


def test_asking_an_engine_for_tokens(asks: Run) -> None:
    with Engine({"/tokenize": {"tokens": PROMPT[:8], "count": 8, "max_model_len": 100}}) as engine:
        data = json.loads(asks("--text", "x", "--tokenize-url", engine.url, "--json").stdout)
        assert (data["prompt_tokens"], data["depth"]) == (8, 2)
        engine.answers["/tokenize"] = 404
        done = asks("--text", "x", "--tokenize-url", engine.url)
        assert done.returncode == 2
        assert f"{engine.url}/tokenize does not exist: is this the address of a vLLM or SGLang server?" in done.stderr
    done = asks("--text", "x", "--tokenize-url", "http://127.0.0.1:9")
    assert (done.returncode, done.stderr) == (
        1,
        "Error: engine http://127.0.0.1:9 cannot be reached: Connection refused\n",
    )


@pytest.mark.process
def test_without_the_package_for_texts(asks: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").touch()
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "tokenizers.py").write_text("raise ImportError('hidden')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "hidden"), prepend=os.pathsep)
    done = asks("--text", "1", "--tokenizer", "x")
    assert done.returncode == 2
    assert done.stderr == "Error: a local tokenizer needs the package tokenizers: pip install 'kvatlas[tokenizer]'\n"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "Exactly one of --tokens, --tokens-file, --text, --chat and --content-hashes is required, got none."),
        (("--tokens", "1", "--content-hashes", "1"), "got --tokens and --content-hashes."),
        (("--text", "a"), "--text requires one of --tokenizer and --tokenize-url."),
        (("--tokens", "1", "--tokenizer", "x"), "--tokenizer can only be used with --text or --chat."),
        (("--content-hashes", "1", "--salt", "s"), "--lora and --salt cannot be used with --content-hashes"),
        (("--tokens", "1,x"), "Error: --tokens must be integers separated by commas or white space, got 'x'"),
        (("--tokens", "-1"), "Error: tokens[0] must be from 0 to 4294967295, got -1"),
        (("--tokens", "4294967296"), "Error: tokens[0] must be from 0 to 4294967295, got 4294967296"),
        (("--tokens-file", "none"), "Error: --tokens-file: cannot read none: No such file or directory"),
        (("--tokens", "1", "--url", "nonsense"), "Error: url must be http://HOST:PORT, got 'nonsense'"),
        (("--tokens", "1", "--ca", "none"), "Error: --ca: cannot use none: No such file or directory"),
        (("--tokens", "1", "--key-file", "none"), "Error: --key-file: cannot read none"),
    ],
)
def test_what_cannot_be_used(asks: Run, args: tuple[str, ...], message: str) -> None:
    done = asks(*args)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stdout == ""


def test_several_models_and_none(run: Run) -> None:
    with Service(config=CONFIG) as service:
        done = run("query", "--url", service.url, "--tokens", "1")
        assert done.returncode == 1
        assert done.stderr == f"Error: {service.url} has no workers\n"
        for name, model, group in (("a", "m", "g"), ("b", "m", "h"), ("c", "n", "g")):
            service.register(name, "tcp://127.0.0.1:9", model=model, block_size=16, routing_group=group)
        done = run("query", "--url", service.url, "--tokens", "1")
        assert done.returncode == 2
        assert done.stderr == f"Error: {service.url} has several models: choose one with --model: m, n\n"
        done = run("query", "--url", service.url, "--tokens", "1", "--model", "m")
        assert "model 'm' is in several routing groups: choose one with --routing-group: g, h" in done.stderr
        done = run("query", "--url", service.url, "--tokens", "1", "--model", "o")
        assert done.returncode == 1
        assert done.stderr == f"Error: {service.url} has no workers for model 'o'; it has models m, n\n"
        done = run("query", "--url", service.url, "--tokens", "1", "--model", "n")
        assert done.returncode == 0
        assert "1 token for n, in blocks of 16\nThe prompt is shorter than one block" in done.stdout
        assert "Untrusted: c rank 0 (connecting)" in done.stdout
        done = run("query", "--url", service.url, "--content-hashes", "1", "--model", "n")
        assert "No trusted worker holds the first block." in done.stdout


def test_nobody_there_is_one_line(run: Run) -> None:
    done = run("query", "--url", "http://127.0.0.1:9", "--tokens", "1")
    assert done.returncode == 1
    assert done.stderr == (
        "Error: http://127.0.0.1:9 cannot be reached: Connection refused: start `kvatlas serve` there, "
        "or set --url or KVATLAS_URL to its address\n"
    )


def test_a_key(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Service(config=Config(http=HttpConfig(bind="127.0.0.1:0", key="k"))) as service:
        done = run("query", "--url", service.url, "--tokens", "1")
        assert done.returncode == 1
        assert done.stderr.endswith("(status 401, unauthorized): set KVATLAS_KEY or --key-file\n")
        (tmp_path / "key").write_text("k\n")
        assert "has no workers" in run("query", "--url", service.url, "--tokens", "1", "--key-file", "key").stderr
        monkeypatch.setenv("KVATLAS_KEY", "k")
        assert "has no workers" in run("query", "--url", service.url, "--tokens", "1").stderr


def test_lower_tiers_have_columns_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    deep = WorkerDepth("a", 16, 32, 64, {0: 16, 1: 8}, 8, 2500.0, "live")
    lower = WorkerDepth("[b]", 0, 0, 48, {}, 8)
    _print(Answer((deep, lower), block_size=8, length=8, prompt_tokens=64, upper_bound=True), "m")
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == [
        "worker",
        "rank",
        "tokens",
        "blocks",
        "prompt",
        "with",
        "host",
        "any",
        "tier",
        "state",
        "lag",
    ]
    assert lines[2].split() == ["a", "0", "16", "2", "25.0", "%", "32", "64", "live", "2.5", "s"]
    assert lines[3].split() == ["1", "8", "1", "12.5", "%"]
    assert lines[4].split() == ["[b]", "0", "0", "0.0", "%", "0", "48"]
    assert "upper bounds" in lines[5]
    assert console() is not None


def test_what_an_engine_can_reuse(asks: Run) -> None:
    done = asks("--tokens", listed(PROMPT))
    _words, header, first, second = done.stdout.splitlines()
    assert header.split()[:6] == ["worker", "rank", "tokens", "blocks", "prompt", "usable"]
    assert first.split()[2] == "12"
    assert first.split()[6] == "8", first  # "100.0 %" is two words
    assert second.split()[6] == "8"
    # Only if it differs.
    assert "usable" not in asks("--tokens", listed([*PROMPT, 13])).stdout


def test_engines_that_do_not_report_salts(capsys: pytest.CaptureFixture[str]) -> None:
    held = WorkerDepth("old", 8, 8, 8, {0: 8}, BLOCK, usable=8)
    hybrid = WorkerDepth("hybrid", 8, 8, 8, {0: 8}, BLOCK, usable=8)
    marked = (("old", 0),)
    words = "unknown with it, as the engine does not report salts: old rank 0"
    _print(Answer((held,), BLOCK, 2, 9, upper_bound=True, no_salts=marked), "m")
    told = capsys.readouterr().out
    assert words in told
    assert "sliding-window" not in told
    _print(Answer((held, hybrid), BLOCK, 2, 9, upper_bound=True, no_salts=marked), "m")
    assert "sliding-window" in capsys.readouterr().out
    _print(Answer((), BLOCK, 2, 9, no_salts=marked), "m")
    assert words in capsys.readouterr().out
    _print(Answer((hybrid,), BLOCK, 2, 9, upper_bound=True), "m")
    assert "salts" not in capsys.readouterr().out


def test_a_model_by_another_name(asks: Run, service: Service) -> None:
    worker = service.workers()[0]
    stream = worker.streams[0]
    service.register(
        worker.worker,
        stream.endpoint,
        replay_endpoint=stream.replay_endpoint,
        model="m",
        block_size=BLOCK,
        aliases=["alias"],
        adapters=["sql"],
    )
    assert json.loads(asks("--tokens", listed(PROMPT), "--model", "alias", "--json").stdout)["depth"] == 3
    # No worker holds blocks of the adapter.
    assert json.loads(asks("--tokens", listed(PROMPT), "--model", "sql", "--json").stdout)["depth"] == 0
    wrong = asks("--tokens", listed(PROMPT), "--model", "alais")
    assert wrong.returncode == 1
    assert "no workers for model 'alais'; it has models m" in wrong.stderr
