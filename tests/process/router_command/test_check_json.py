"""`kvatlas router --check --json`: an object for each engine, and an exit status that says what is wrong."""

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.support.engine import MODEL, closed_port
from tests.support.engine import Engine as FakeEngine

from kvatlas.cli.router import router as command

pytest.importorskip("tokenizers")

FLAGS = ("--check", "--json", "--tokenizer", "none")


def checked(*flags: str) -> tuple[Result, list[dict[str, Any]]]:
    done = CliRunner().invoke(command, [*FLAGS, *flags])
    return done, [json.loads(line) for line in done.stdout.splitlines()]


def outcomes(engine: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {check["check"]: (check["outcome"], check["code"]) for check in engine["checks"]}


def test_an_object_for_each_engine() -> None:
    with FakeEngine() as fake, closed_port() as port:
        cards = [{"id": "adapter", "parent": MODEL}, {"id": MODEL, "parent": None}]
        fake.answers["/v1/models"] = {"object": "list", "data": cards}
        done, found = checked(
            "--no-events", "--engine", f"well={fake.url}", "--engine", f"away=http://127.0.0.1:{port}"
        )
    assert done.exit_code == 3, done.output
    by_name = {engine["name"]: engine for engine in found}
    well, away = by_name["well"], by_name["away"]
    assert well.keys() == {"name", "url", "role", "models", "adapters", "checks"}
    assert (well["url"], well["role"], well["models"], well["adapters"]) == (fake.url, "both", [MODEL], ["adapter"])
    assert outcomes(well)["answers"] == ("ok", "ok")
    assert outcomes(well)["tokens"] == ("warning", "not_tokenized")
    assert away["models"] == []
    [check] = away["checks"]
    assert check == {
        "check": "reachable",
        "outcome": "problem",
        "code": "unreachable",
        "why": "it cannot be reached: Connection refused",
        "change": "start the engine, or correct its address",
    }


def test_the_status_says_what_is_wrong() -> None:
    with FakeEngine() as fake:
        done, [engine] = checked("--no-events", "--engine", fake.url)
        assert done.exit_code == 0, done.output
        fake.answers["/kv_event_sources"] = {}
        done, [engine] = checked("--engine", fake.url)
        assert (done.exit_code, outcomes(engine)["events"]) == (4, ("problem", "no_events"))
        done, [engine] = checked("--no-events", "--tokenizer", "engine", "--engine", fake.url)
        assert (done.exit_code, outcomes(engine)["tokens"]) == (5, ("problem", "cannot_tokenize"))
        done, [_, settings] = checked("--no-events", "--model-tokenizer", "gone=none", "--engine", fake.url)
        assert (done.exit_code, settings["role"]) == (1, "settings")
        assert outcomes(settings)["tokenizers"] == ("problem", "unused_tokenizer")


def test_json_without_a_check_is_refused() -> None:
    done = CliRunner().invoke(command, ["--json", "--engine", "http://127.0.0.1:9"])
    assert done.exit_code == 2
    assert "--json can only be used with --check" in done.output
