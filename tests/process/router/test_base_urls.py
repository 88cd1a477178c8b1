"""Addresses of engines as OpenAI's clients write them, with `/v1`, and addresses that are none."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.command import in_process
from tests.support.engine import Engine

from .conftest import QUICK
from .running import Router, wait_until

BASES = ["/v1", "/v1/", "/", "//", "/v1//"]
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/tokenize")


def by_flag(folder: Path, engine: str) -> tuple[str, ...]:
    return ("--engine", f"a={engine}")


def by_file(folder: Path, engine: str) -> tuple[str, ...]:
    (folder / "r.toml").write_text(f'[[engine]]\nname = "a"\nurl = "{engine}"\n')
    return ("--config", str(folder / "r.toml"))


def by_engines_file(folder: Path, engine: str) -> tuple[str, ...]:
    (folder / "e.toml").write_text(f'[[engine]]\nname = "a"\nurl = "{engine}"\n')
    return ("--engines-file", str(folder / "e.toml"))


def by_environment(folder: Path, engine: str) -> tuple[str, ...]:
    return ("KVATLAS_ENGINES", f"a={engine}")


WAYS = [by_flag, by_file, by_engines_file]


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("way", WAYS)
def test_the_base_url_of_a_client_is_understood(
    engine: Engine, tmp_path: Path, way: Callable[[Path, str], tuple[str, ...]], base: str
) -> None:
    with Router(flags=(*QUICK, *way(tmp_path, engine.url + base))) as router:
        for path in PATHS:
            body = {"model": "model", "messages": [], "prompt": "a", "input": "a"}
            assert router.ask(body, path=path).status == 200
            assert engine.last.path == path
        assert not [one.path for one in engine.received if one.path.startswith(("/v1/v1", "//"))]
        wait_until(lambda: "/v1/models" in {one.path for one in engine.received}, "it is asked for its models")


@pytest.mark.parametrize("base", BASES)
def test_engines_that_are_added_over_http(engine: Engine, base: str) -> None:
    with Router(flags=QUICK, ready=False) as router:
        status, row = router.call("POST", "/engines", {"url": engine.url + base})
        assert (status, row["name"]) == (201, f"127.0.0.1:{engine.port}")
        assert router.ask().status == 200
        assert engine.last.path == "/v1/chat/completions"


def test_an_engine_below_a_path_keeps_it(engine: Engine) -> None:
    engine.answers["/gw/v1/models"] = engine.answers["/v1/models"]
    with Router(flags=(*QUICK, "--engine", f"{engine.url}/gw/v1")) as router:
        router.ask()
        assert engine.last.path == "/gw/v1/chat/completions"


REFUSED = [
    ("/v1/chat/completions", "leave out what begins with /v1"),
    ("/v1/models", "leave out what begins with /v1"),
    ("/v1/v1", "leave out what begins with /v1"),
    ("/gw/v1/messages", "leave out what begins with /v1"),
    ("/a/../b", "has an empty part, or one of dots"),
    ("/a//b", "has an empty part, or one of dots"),
    ("/v1?key=1", "query"),
    ("/?", "query"),
    ("#v1", "fragment"),
    ("/v1#", "fragment"),
]


@pytest.mark.parametrize(("path", "words"), REFUSED)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("command", ["router", "serve"])
def test_what_is_no_address_is_refused_at_the_start(
    tmp_path: Path, command: str, way: Callable[[Path, str], tuple[str, ...]], path: str, words: str
) -> None:
    ended = in_process(command, *way(tmp_path, f"http://h:1{path}"))
    assert ended.returncode == 2
    assert words in ended.stderr


@pytest.mark.parametrize(("path", "words"), REFUSED)
def test_what_is_no_address_is_refused_over_http(plain: tuple[Router, Engine], path: str, words: str) -> None:
    status, refused = plain[0].call("POST", "/engines", {"url": f"http://h:1{path}", "name": "new"})
    assert (status, refused["error"]["code"]) == (400, "invalid_engine")
    assert words in refused["error"]["message"]


def test_a_password_is_refused_and_not_shown(plain: tuple[Router, Engine], tmp_path: Path) -> None:
    for way in WAYS:
        ended = in_process("router", *way(tmp_path, "http://user:secret@h:1/v1"))
        assert ended.returncode == 2
        assert re.search(r"must not hold a user or password.*--engine-key-file", ended.stderr)
        assert "secret" not in ended.stderr
    assert "secret" not in in_process("serve", "--engine", "http://user:secret@h:1/v1/models").stderr
    status, refused = plain[0].call("POST", "/engines", {"url": "http://user:secret@h:1"})
    assert status == 400
    assert "secret" not in json.dumps(refused)


OTHERS = [
    ("router", "--index"),
    ("router", "--global"),
    ("router", "--peer"),
    ("router", "--peer-snapshot"),
    ("serve", "--peer-snapshot"),
    ("serve", "--global"),
]


@pytest.mark.parametrize(("command", "flag"), OTHERS)
def test_addresses_of_services_likewise(command: str, flag: str) -> None:
    more = ("--site", "s") if (command, flag) == ("serve", "--global") else ()
    shown = in_process(command, flag, "http://h:1/v1/", *more, "--print-config")
    assert shown.returncode == 0, shown.stderr
    assert '"http://h:1"' in shown.stdout
    refused = in_process(command, flag, "http://h:1/v1/models", *more, "--print-config")
    assert (refused.returncode, "leave out what begins with /v1" in refused.stderr) == (2, True)
