"""The Helm chart and the kustomization: what they name is there, and Kubernetes and kvatlas understand it.

Much is checked of what the chart makes of its defaults, which is in the repository. With the tools that
`make check-deploy` installs, the same is checked of several sets of values, and everything by Kubernetes's own schemas.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click.testing
import pytest
import yaml  # type: ignore[import-untyped]

from kvatlas import _native
from kvatlas.cli import main
from kvatlas.router import RouterConfig
from kvatlas.service import Config
from kvatlas.service.discovery.sources.files import read_engines

from .manifests import (
    CHART,
    KUBERNETES,
    KUSTOMIZE,
    RENDERED,
    VALUES,
    WITHOUT_SCHEMA,
    Document,
    container,
    documents,
    helm,
    load,
    of_kind,
    port_of,
    render,
    tool,
    workloads,
)

DEFAULTS = load(CHART / "values.yaml")
TEMPLATES = {path.name: path.read_text() for path in (CHART / "templates").iterdir()}
CASES = ["defaults", *(path.stem for path in VALUES)]
PARTS = ("serve", "router", "picker")


@pytest.fixture(params=CASES)
def made(request: pytest.FixtureRequest) -> list[Document]:
    """The manifests that the chart makes: of its defaults without helm, of other values with it."""
    if request.param == "defaults":
        return documents(RENDERED.read_text())
    (values,) = [path for path in VALUES if path.stem == request.param]
    return documents(render("--values", str(values)))


# Values


def leaves(values: dict[str, Any], before: str = "") -> Iterator[str]:
    for name, value in values.items():
        path = f"{before}{name}"
        # What goes into a manifest as it is, is one value.
        if isinstance(value, dict) and value and name != "resources":
            yield from leaves(value, f"{path}.")
        else:
            yield path


@pytest.mark.parametrize("path", list(leaves(DEFAULTS)))
def test_every_value_is_used(path: str) -> None:
    part, _, rest = path.partition(".")
    every = "".join(TEMPLATES.values())
    # Templates of both parts call the values of theirs $c.
    names = [rf"\$c\.{re.escape(rest)}", rf"\.c\.{re.escape(rest)}"] if part in PARTS else []
    names += [rf"(\.|\$)[vV]alues\.{re.escape(path)}", rf"\$policy\.{re.escape(path.removeprefix('networkPolicy.'))}"]
    assert re.search(rf"({'|'.join(names)})\b", every), path


def test_the_schema_has_the_values_and_no_others() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())

    def check(schema: dict[str, Any], values: dict[str, Any], path: str) -> None:
        if "properties" not in schema:
            return
        assert schema["additionalProperties"] is False, path
        assert schema["properties"].keys() - {"global"} == values.keys(), path
        for name, value in values.items():
            if isinstance(value, dict):
                check(schema["properties"][name], value, f"{path}.{name}")

    check(schema, DEFAULTS, "")


def test_every_value_is_explained() -> None:
    """By a comment above it, above what it is part of, or in the part of `serve`, which `router` repeats."""
    lines = (CHART / "values.yaml").read_text().splitlines()
    explained = sum(line.lstrip().startswith("#") for line in lines)
    assert explained > 50
    for name in DEFAULTS:
        at = next(number for number, line in enumerate(lines) if line.startswith(f"{name}:"))
        within = lines[at + 1 : at + 3]
        assert lines[at - 1].startswith("#") or any("#" in line for line in within) or name == "serviceAccount", name


def test_ports_and_times_are_those_of_kvatlas() -> None:
    assert int(Config().http.bind.rpartition(":")[2]) == DEFAULTS["serve"]["port"]
    assert int(RouterConfig().http.bind.rpartition(":")[2]) == DEFAULTS["router"]["port"]
    assert f"{Config().snapshot.every:g}s" == DEFAULTS["serve"]["snapshot"]["every"]
    text = (CHART.parents[1] / "Containerfile").read_text()
    assert f"KVATLAS_ADMIN_BIND=127.0.0.1:{DEFAULTS['adminPort']}" in text
    user = next(iter(of_kind("StatefulSet", documents(RENDERED.read_text())).values()))["spec"]["template"]["spec"]
    assert f"USER {user['securityContext']['runAsUser']}:{user['securityContext']['runAsGroup']}" in text


def test_the_chart_has_the_version_of_the_package() -> None:
    chart = load(CHART / "Chart.yaml")
    assert chart["version"] == chart["appVersion"] == _native.__version__


# What is made


def test_kvatlas_takes_the_arguments(made: list[Document], tmp_path: Path) -> None:
    for pod in workloads(made).values():
        arguments = container(pod)["args"]
        for path in ("engines/engines.toml", "engine-key/token", *(f"keys/{n}" for n in "abc")):
            (tmp_path / path).parent.mkdir(exist_ok=True)
            (tmp_path / path).write_text("" if path.endswith("toml") else "secret")
        for name in ("key", "admin-key", "router-key"):
            (tmp_path / "keys" / name).write_text("secret")
        arguments = [argument.replace("/etc/kvatlas", str(tmp_path)) for argument in arguments]
        env = {variable["name"]: variable["value"] for variable in container(pod).get("env", [])}
        done = click.testing.CliRunner().invoke(main, [*arguments, "--print-config"], env=env)
        assert done.exit_code == 0, done.output
        assert re.search(rf'^bind = "\S+:{port_of(pod, "http")}"  # --bind', done.output, re.MULTILINE)
        assert re.search(rf'^admin_bind = "\S+:{port_of(pod, "admin")}"', done.output, re.MULTILINE)
        # What is given several times, is several things.
        for argument in arguments:
            flag, _, value = argument.partition("=")
            if flag in ("--peer", "--hash-seed"):
                assert f'"{value}"' in done.output, argument


def test_every_mounted_file_and_name_is_there(made: list[Document]) -> None:
    services = of_kind("Service", made)
    maps = of_kind("ConfigMap", made)
    for name, pod in workloads(made).items():
        spec = pod["spec"]["template"]["spec"]
        assert pod["spec"].get("serviceName", name) in services
        assert name in services
        volumes = {volume["name"] for volume in spec["volumes"]}
        volumes |= {claim["metadata"]["name"] for claim in pod["spec"].get("volumeClaimTemplates", [])}
        mounts = {mount["name"]: mount["mountPath"] for mount in container(pod)["volumeMounts"]}
        assert mounts.keys() == volumes
        for volume in spec["volumes"]:
            if "configMap" in volume:
                assert volume["configMap"]["name"] in maps
        paths = re.findall(r"=(/\S+)", "\n".join(container(pod)["args"]))
        assert paths or not has_keys(pod)
        for path in paths:
            assert any(f"{path}/".startswith(f"{mount}/") for mount in mounts.values()), path
        # Names of other pods and Services that arguments have.
        for argument in container(pod)["args"]:
            for host in re.findall(r"(?:dns:|http://)([^:]+):", argument):
                assert host.rpartition(".")[2] in services, argument


def has_keys(pod: Document) -> bool:
    """True if a workload reads keys."""
    return any(volume["name"] == "keys" for volume in pod["spec"]["template"]["spec"]["volumes"])


def test_everything_finds_its_pods(made: list[Document]) -> None:
    pods = [pod["spec"]["template"] for pod in workloads(made).values()]
    engines = {"app": "vllm"}
    for document in made:
        spec = document.get("spec", {})
        selector = spec.get("selector", spec.get("podSelector"))
        if selector is None or document["kind"] == "ServiceMonitor":
            continue
        labels = selector.get("matchLabels", selector)
        found = [pod for pod in pods if labels.items() <= pod["metadata"]["labels"].items()]
        assert len(found) == 1 or labels == engines, document["metadata"]["name"]
    for service in of_kind("Service", made).values():
        (pod,) = [p for p in pods if service["spec"]["selector"].items() <= p["metadata"]["labels"].items()]
        ports = {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    for monitor in of_kind("ServiceMonitor", made).values():
        wanted = monitor["spec"]["selector"]["matchLabels"]
        scraped = [s for s in of_kind("Service", made).values() if wanted.items() <= s["metadata"]["labels"].items()]
        assert len(scraped) == len(pods)
        assert all(any(port["name"] == "admin" for port in service["spec"]["ports"]) for service in scraped)


def test_pods_are_restricted_and_get_time_to_stop(made: list[Document]) -> None:
    for pod in workloads(made).values():
        spec = pod["spec"]["template"]["spec"]
        finds_pods = any(
            argument.startswith(("--discover=k8s:", "--pool-name=")) for argument in container(pod)["args"]
        )
        assert spec["automountServiceAccountToken"] is finds_pods
        assert spec["enableServiceLinks"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        own = container(pod)["securityContext"]
        assert own["allowPrivilegeEscalation"] is False
        assert own["readOnlyRootFilesystem"] is True
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert not any("hostPath" in volume for volume in spec["volumes"])
        asked = [container(pod)[f"{name}Probe"] for name in ("liveness", "startup", "readiness")]
        if container(pod)["args"][0] == "epp":
            assert [probe["grpc"]["service"] for probe in asked] == ["liveness", "liveness", "readiness"]
            assert {probe["grpc"]["port"] for probe in asked} == {port_of(pod, "grpc-health")}
        else:
            assert [probe["httpGet"]["path"] for probe in asked] == ["/health", "/health", "/ready"]
            assert {probe["httpGet"]["port"] for probe in asked} == {"admin"}
        text = " ".join(container(pod)["args"])
        seconds = sum(int(re.findall(rf"--drain-{name}=(\d+)s", text)[0]) for name in ("delay", "timeout"))
        assert spec["terminationGracePeriodSeconds"] > seconds


def test_only_those_named_may_connect() -> None:
    """By default, and on each port: clients in the namespace, and everyone to metrics."""
    made = documents(RENDERED.read_text())
    policies = of_kind("NetworkPolicy", made)
    assert policies.keys() == of_kind("StatefulSet", made).keys()
    for name, policy in policies.items():
        spec = policy["spec"]
        pod = of_kind("StatefulSet", made)[name]["spec"]["template"]["metadata"]["labels"]
        assert spec["podSelector"]["matchLabels"].items() <= pod.items()
        assert spec["policyTypes"] == ["Ingress"]
        rules = {port["port"]: rule.get("from") for rule in spec["ingress"] for port in rule["ports"]}
        assert rules.keys() == {"http", "admin"}
        assert rules["http"]
        assert all(source.keys() == {"podSelector"} for source in rules["http"])
        assert rules["admin"] is None


def test_kvatlas_reads_the_engines(made: list[Document]) -> None:
    (text,) = (
        document["data"]["engines.toml"]
        for document in of_kind("ConfigMap", made).values()
        if "engines.toml" in document["data"]
    )
    read = read_engines(text.encode(), Path("engines.toml"), Config())
    assert len(read) == text.count("\n[[")
    if "old-0" in text:
        old = next(entry for entry in read if entry.worker == "old-0.other")
        assert (old.url, old.events_port, old.aliases) == (  # type: ignore[union-attr]
            "http://old-0.old-headless.other.svc.cluster.local:8000",
            5557,
            ("a", "b"),
        )


# By the tools


def test_what_is_in_the_repository_is_what_the_chart_makes() -> None:
    assert RENDERED.read_text() == render(), "the chart has changed: run `make manifests`"


def test_helm_finds_nothing_to_complain_of() -> None:
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout
    for values in VALUES:
        done = helm("lint", "--strict", str(CHART), "--values", str(values))
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("version", ["1.27", "1.37"])
def test_kubernetes_schemas_have_all_of_it(version: str, tmp_path: Path) -> None:
    validate = tool("kubernetes-validate")
    texts = {"defaults": RENDERED.read_text()}
    texts |= {path.stem: render("--values", str(path)) for path in VALUES}
    for name, text in texts.items():
        known = [document for document in documents(text) if document["kind"] not in WITHOUT_SCHEMA]
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump_all(known))
        command = [validate, "--strict", "--kubernetes-version", version, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
        assert done.stdout.count("INFO") == len(known), done.stdout


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("nonsense=1", "nonsense"),
        ("serve.replicas=0", "replicas"),
        ("serve.settings.bind=x", "bind"),
        ("router.index=other", "index"),
        ("engines.urls={host-a}", "urls"),
        ("keys.secretName=,router.service.type=LoadBalancer", "keys.router"),
        ("keys.serve=,serve.service.type=NodePort", "serve.service.type is NodePort"),
        ("picker.enabled=true", "picker.pool.selector has no labels"),
        ("picker.pool.targetPorts={}", "targetPorts"),
        ("picker.pool.failureMode=Open", "failureMode"),
        ("picker.settings.pool-name=x", "pool-name"),
        ("router.index=service,serve.enabled=false", 'router.index is "service", but serve.enabled is false'),
    ],
)
def test_wrong_values_are_refused(setting: str, message: str) -> None:
    done = helm("template", "kvatlas", str(CHART), "--kube-version", KUBERNETES, "--set", setting)
    assert done.returncode != 0
    assert message in done.stderr


def test_kustomize_takes_the_base_and_the_example() -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    for name in ("base", "example"):
        done = subprocess.run(
            [kubectl, "kustomize", str(KUSTOMIZE / name)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        made = documents(done.stdout)
        assert len(made) == len(documents(RENDERED.read_text()))
    served = container(of_kind("StatefulSet", made)["kvatlas-serve"])
    assert served["image"] == "registry.example.com/kvatlas:0.1.0"
    assert "--hash-seed=0" in served["args"]
    (engines,) = of_kind("ConfigMap", made).values()
    assert len(read_engines(engines["data"]["engines.toml"].encode(), Path("e"), Config())) == 2


# Monitoring


def test_the_chart_has_the_alerts_and_the_dashboards_if_asked_for() -> None:
    values = next(path for path in VALUES if path.stem == "everything")
    made = documents(render("--values", str(values)))
    (rules,) = of_kind("PrometheusRule", made).values()
    assert rules["metadata"]["labels"]["release"] == "prometheus"
    assert rules["spec"] == load(CHART.parents[1] / "prometheus/kvatlas.rules.yml")
    maps = of_kind("ConfigMap", made)
    files = {path.name: path.read_text() for path in (CHART.parents[1] / "grafana").glob("*.json")}
    found: dict[str, str] = {}
    for document in maps.values():
        labels = document["metadata"].get("labels", {})
        if "grafana_dashboard" in labels:
            assert labels["grafana"] == "main"
            assert document["metadata"]["annotations"] == {"grafana_folder": "kvatlas"}
            found |= document["data"]
    assert {name: json.loads(text) for name, text in found.items()} == {
        f"kvatlas-{name}": json.loads(text) for name, text in files.items()
    }


def test_the_chart_has_no_alerts_and_no_dashboards_unless_asked_for() -> None:
    made = documents(RENDERED.read_text())
    assert not of_kind("PrometheusRule", made)
    assert not [name for name in of_kind("ConfigMap", made) if "dashboard" in name]
