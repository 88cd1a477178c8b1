"""The router's configuration: where it comes from, what is refused, and what the native router is told."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvatlas.cli.router import router as command
from kvatlas.errors import ConfigError, PolicyError, TokenizerError
from kvatlas.router import RouterConfig, RouterSection, read_router_config
from kvatlas.router.config import ROUTER, show_router_config
from kvatlas.router.tokenizers import resolve
from kvatlas.routing.policies import check_name, own_policy
from kvatlas.service import Engine
from kvatlas.service.replicas import PEERS


def test_flags_over_variables_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "router.toml"
    file.write_text(
        'engine = ["http://a:8000"]\n[[decode]]\nurl = "http://d:8000"\nweight = 2\n'
        '[router]\npolicy = "session"\nqueue = 7\nrecord = "log.jsonl"\n'
        '[router.policy_options]\nbound = 1.5\nname = "x"\n[upstream]\nretries = 5\n'
    )
    env = {"KVATLAS_QUEUE": "8", "KVATLAS_RETRIES": "6", "KVATLAS_PREFILL": "http://p:8000 http://q:8000"}
    resolved = read_router_config({"upstream.retries": "9"}, env, file)
    config = resolved.config
    assert (config.router.policy, config.router.queue, config.upstream.retries) == ("session", 8, 9)
    assert dict(config.router.policy_options) == {"bound": 1.5, "name": "x"}
    assert config.router.record == tmp_path / "log.jsonl"
    roles = {engine.url: (engine.role, engine.weight) for engine in config.engines}
    assert roles == {
        "http://a:8000": (None, None),
        "http://d:8000": ("decode", 2.0),
        "http://p:8000": ("prefill", None),
        "http://q:8000": ("prefill", None),
    }
    assert resolved.sources["router.queue"] == "KVATLAS_QUEUE"
    assert resolved.sources["upstream.retries"] == "--retries"
    assert resolved.sources["router.policy"] == f"{file}, line 6"


def test_what_is_printed_is_read_again(tmp_path: Path) -> None:
    flags = {
        "engine": ["b=http://b:1"],
        "decode": ["http://d:1"],
        "router.policy_options": "a=1 b=true c=x d=0.5",
        "router.tokenizers": "m=/tokenizers/m",
        "router.no_events": "true",
        "health.open": "250ms",
    }
    first = read_router_config(flags, {})
    file = tmp_path / "printed.toml"
    file.write_text(show_router_config(first))
    again = read_router_config({}, {}, file)
    assert again.config == first.config
    assert dict(again.config.router.policy_options) == {"a": 1, "b": True, "c": "x", "d": 0.5}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"router.policy_options": "patience"}, "--policy-option must be NAME=VALUE, several separated by white space"),
        (
            {"router.index": "host"},
            "router.index must be http://HOST:PORT or https://HOST:PORT, but the scheme is missing",
        ),
        ({"router.index": "http://h:1", "router.no_events": "true"}, "router.index and router.no_events are both set"),
        ({"router.forward_tokens": "true"}, "router.forward_tokens needs a tokenizer here"),
        (
            {"router.peers": "host"},
            "dns:NAME:PORT or dns+https:NAME:PORT, but the scheme is missing",
        ),
        (
            {"router.peers": "dns:host:0"},
            f"router.peers must be {PEERS}, but the port must be",
        ),
        ({"router.peer_key_file": "x"}, "router.peer_key is for the routers at router.peers, which are not set"),
        (
            {"router.global_url": "host"},
            "router.global_url must be http://HOST:PORT or https://HOST:PORT, but the scheme is missing",
        ),
        (
            {"router.global_key_file": "x"},
            "router.global_key is for the service at router.global_url, which is not set",
        ),
        (
            {"router.global_url": "https://h:1", "router.index": "https://i:1"},
            "router.index and router.global_url are both set: set one of them",
        ),
        ({"router.index_key_file": "x"}, "router.index_key is for the service at router.index, which is not set"),
        ({"prefill": ["http://p:1"]}, "there are prefill engines but none for decode: add --decode URL"),
        ({"decode": ["http://p:1"]}, "there are decode engines but none for prefill: add --prefill URL"),
        ({"engine": ["http://p:1"], "decode": ["http://p:1"]}, "are both named"),
        ({"health.path": "health"}, 'health.path must begin with /, got "health"'),
        ({"health.open": "1m"}, "health.open (60 s) must not be above health.open_max (30 s)"),
        ({"router.seed": "-1"}, "--seed must be an integer from 0"),
        ({"router.response_headers": "yes"}, '--response-headers must be one of "on", "off", got "yes"'),
    ],
)
def test_refused(flags: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        read_router_config(flags, {})


def test_misspelt(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown environment variable KVATLAS_POLCY: did you mean KVATLAS_POLICY"):
        read_router_config({}, {"KVATLAS_POLCY": "x"})
    file = tmp_path / "r.toml"
    file.write_text("[router]\npolcy = 1\n")
    with pytest.raises(ConfigError, match=r"line 2: unknown key router\.polcy: did you mean router\.policy"):
        read_router_config({}, {}, file)
    file.write_text('[router]\nindex_key = "secret"\n')
    with pytest.raises(ConfigError, match=r"not allowed in a configuration file: use router\.index_key_file") as error:
        read_router_config({}, {}, file)
    assert "secret" not in str(error.value)


def test_the_native_router_is_told_all_of_it() -> None:
    own = RouterSection(policy="session", policy_options=(("bound", 2.0),), no_events=False, index=None)
    config = RouterConfig(engines=(Engine("http://a:8000", name="a", weight=2.0, aliases=("x",)),), router=own)
    told = config.router_for_native("/t", {"m": "/u"})
    assert json.loads(json.dumps(told)) == told
    names: dict[str, list[str]] = {"models": [], "aliases": ["x"], "adapters": []}
    assert told["engines"] == [{"name": "a", "url": "http://a:8000", "role": "both", "weight": 2.0, **names}]
    assert told["policy_options"] == {"bound": 2.0}
    assert (told["tokenizer"], told["tokenizers"]) == ("/t", {"m": "/u"})
    assert told["service"] is not None
    without = RouterConfig(router=RouterSection(no_events=True)).router_for_native(None, {})
    assert (without["service"], without["no_events"]) == (None, True)
    remote = RouterConfig(router=RouterSection(index="http://h:8090/", index_key="k")).router_for_native(None, {})
    assert (remote["service"], remote["index"], remote["index_key"]) == (None, "http://h:8090", "k")
    above = RouterConfig(router=RouterSection(global_url="https://h:1", global_key="k")).router_for_native(None, {})
    said = above["service"], above["index"], above["global_url"], above["global_key"], above["global_timeout"]
    assert said == (None, None, "https://h:1", "k", 0.2)
    read = read_router_config({"router.peers": "http://r:8080"}, {"KVATLAS_PEER_KEY": "p"}).config
    assert read.router_for_native(None, {})["peer_key"] == "p"


def test_every_setting_has_a_flag_and_the_flags_work() -> None:
    shown = CliRunner().invoke(command, ["--help"]).output
    for key in ROUTER.keys.values():
        assert key.flag in shown
    flags = [
        "--no-events",
        "--policy-option",
        "a=1",
        "--policy-option",
        "b=x",
        "--print-config",
        "--engine",
        "http://a:1",
    ]
    printed = CliRunner().invoke(command, flags).output
    assert "no_events = true  # --no-events" in printed
    assert '"a" = 1, "b" = "x"' in printed
    wrong = CliRunner().invoke(command, ["--queue", "many"])
    assert (wrong.exit_code, "--queue must be an integer" in wrong.output) == (2, True)


def test_the_documentation_has_every_setting() -> None:
    from tools.docs import configuration  # noqa: PLC0415 - only this test needs it

    page = configuration.router_page() + configuration.page()
    for key in ROUTER.keys.values():
        assert f"`{key.path}`" in page, key.path
        assert f"`{key.flag}`" in page, key.flag


def test_policies_by_name() -> None:
    check_name("kvatlas")
    check_name("round-robin")
    with pytest.raises(PolicyError, match="no policy 'round-robbin': did you mean 'round-robin'"):
        check_name("round-robbin")


def test_policies_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_policies.py").write_text(
        "class Good:\n"
        "    def __init__(self, seed, bias=0):\n        self.seed, self.bias = seed, bias\n"
        "    def choose(self, request, candidates):\n        return 0\n"
        "class Bad:\n    pass\n"
    )
    monkeypatch.chdir(tmp_path)
    made = own_policy("own_policies:Good", 7, {"bias": 2})
    assert vars(made) == {"seed": 7, "bias": 2}
    for name, words in (
        ("own_policies:Bad", "needs a choose"),
        ("own_policies:Gone", "cannot load policy"),
        ("gone:Good", "cannot load policy 'gone:Good': ModuleNotFoundError"),
    ):
        with pytest.raises(PolicyError, match=words):
            own_policy(name, 0)
    with pytest.raises(PolicyError, match="cannot be made: TypeError"):
        own_policy("own_policies:Good", 0, {"none": 1})


def test_tokenizers(tmp_path: Path) -> None:
    assert resolve("none") is None
    assert resolve("engine") == "engine"
    assert resolve(str(tmp_path)) == str(tmp_path)
    with pytest.raises(TokenizerError, match=r"there is no \./gone"):
        resolve("./gone")
