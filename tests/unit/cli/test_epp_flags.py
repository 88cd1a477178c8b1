"""Flags of the reference Endpoint Picker, as the settings that they come to."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.support.command import Run

from kvatlas.cli.epp_flags import HEALTH_PORT

# What KServe's controller starts a scheduler with, and the chart of the extension.
KSERVE = "--pool-name qwen --pool-namespace llm --grpc-port 9002 --grpc-health-port 9003 --zap-encoder json"
CHART = (
    "--pool-name qwen --pool-namespace llm --pool-group inference.networking.k8s.io --zap-encoder json "
    "--config-file /c.yaml --tracing=false --v=3 --metrics-endpoint-auth=false"
)


def printed(run: Run, *flags: str) -> dict[str, Any]:
    done = run("epp", *flags, "--print-config")
    assert done.returncode == 0, done.stderr
    return tomllib.loads(done.stdout)


@pytest.mark.parametrize("flags", [KSERVE, CHART])
def test_the_command_lines_of_others_are_taken(run: Run, flags: str) -> None:
    settings = printed(run, *flags.split())
    assert settings["discovery"]["sources"] == ["pool:llm/qwen"]
    assert settings["log"]["format"] == "json"
    assert settings["log"]["level"] == "info"
    own = settings["router"]
    assert re.fullmatch(r"(\[::\]|0\.0\.0\.0):9002", own["gateway_bind"])
    assert own["gateway_health_bind"].endswith(f":{HEALTH_PORT}")
    assert own["gateway_tls"] is True
    assert settings["http"]["admin_bind"].endswith(":9090")
    assert settings["http"]["bind"] == "127.0.0.1:8080", "what changes the router is not for the cluster"


def test_pods_without_a_pool(run: Run) -> None:
    flags = ["--endpoint-selector", "app=vllm,tier=gold", "--endpoint-target-ports", "8000,8001"]
    assert printed(run, *flags)["discovery"]["sources"] == ["k8s:/app=vllm,tier=gold:8000,8001"]
    both = printed(run, *flags, "--pool-namespace", "llm", "--discover", "dns:more:8000")
    assert both["discovery"]["sources"] == ["k8s:llm/app=vllm,tier=gold:8000,8001", "dns:more:8000"]


def test_tls_is_on_unless_it_is_off(run: Run, tmp_path: Path) -> None:
    engine = ("--engine", "http://a:1")
    assert printed(run, *engine, "--secure-serving=false")["router"]["gateway_tls"] is False
    assert printed(run, *engine, "--secure-serving")["router"]["gateway_tls"] is True
    own = printed(run, *engine, "--cert-path", str(tmp_path))["router"]
    assert own["gateway_tls_cert"] == f"{tmp_path}/tls.crt"
    assert own["gateway_tls_key"] == f"{tmp_path}/tls.key"
    without = printed(run, *engine, "--cert-path", str(tmp_path), "--secure-serving=false")["router"]
    assert "gateway_tls_cert" not in without


def test_settings_of_the_file_and_of_variables_are_stronger_than_the_usual_ports(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "epp.toml"
    file.write_text(
        '[router]\ngateway_bind = "127.0.0.1:7000"\ngateway_tls = false\n[http]\nadmin_bind = "127.0.0.1:7001"\n'
    )
    monkeypatch.setenv("KVATLAS_GATEWAY_HEALTH_BIND", "127.0.0.1:7002")
    settings = printed(run, "--engine", "http://a:1", "--config", str(file))
    own = settings["router"]
    assert (own["gateway_bind"], own["gateway_health_bind"]) == ("127.0.0.1:7000", "127.0.0.1:7002")
    assert own["gateway_tls"] is False
    assert settings["http"]["admin_bind"] == "127.0.0.1:7001"
    given = printed(run, "--engine", "http://a:1", "--config", str(file), "--grpc-port", "7003")
    assert given["router"]["gateway_bind"].endswith(":7003")


@pytest.mark.parametrize(
    ("verbosity", "level"),
    [("-v 4", "debug"), ("--v=2", "info"), ("--zap-log-level error -v 5", "error"), ("--zap-log-level 3", "debug")],
)
def test_the_verbosity_of_the_log(run: Run, verbosity: str, level: str) -> None:
    assert printed(run, "--pool-name", "p", *verbosity.split())["log"]["level"] == level


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("", "nothing says where the engines are: give --pool-name NAME"),
        (
            "--pool-name a --endpoint-selector b=c --endpoint-target-ports 1",
            "--pool-name and --endpoint-selector are both",
        ),
        ("--endpoint-selector b=c", "--endpoint-target-ports is missing"),
        ("--endpoint-target-ports 8000", "--endpoint-selector is missing"),
        ("--endpoint-selector b=c --endpoint-target-ports x", "is not a list of from 1 to 8 ports"),
        (
            "--pool-name p --pool-group inference.networking.x-k8s.io",
            "--pool-group must be inference.networking.k8s.io",
        ),
        ("--pool-name p --disable-endpoint-subset-filter", "the subset that a gateway sets is always kept to"),
        ("--pool-name p --metrics-cert-dir /x", "/metrics has no TLS here"),
        ("--pool-name p --secure-serving=maybe", "--secure-serving must be true or false"),
        ("--pool-name p --zap-encoder xml", "--zap-encoder must be json or console"),
        ("--pool-name p -v x", "-v must be a number"),
        ("--pool-name p --zap-log-level loud", "--zap-log-level must be debug, info, error, panic or a number"),
    ],
)
def test_what_cannot_be_is_refused(run: Run, flags: str, words: str) -> None:
    done = run("epp", *flags.split())
    assert done.returncode == 2
    assert words in " ".join(done.stderr.split())


def test_what_is_off_anyway_may_be_switched_off(run: Run) -> None:
    assert printed(run, "--pool-name", "p", "--disable-endpoint-subset-filter=false")
