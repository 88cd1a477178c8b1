"""Pools and pickers, of `deploy/kubernetes/endpoint-picker` and of the chart: what they name is there, and kvatlas
understands it."""

from __future__ import annotations

import subprocess
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.command import in_process

from kvatlas.cli.epp_flags import POOL_GROUP

from .manifests import KUSTOMIZE, Document, container, documents, load, of_kind, port_of, render, tool

FOLDER = KUSTOMIZE / "endpoint-picker"
KUSTOMIZATION = load(FOLDER / "kustomization.yaml")
ALONE = ("serve.enabled=false", "router.enabled=false", "engines.pods=null")
CHART = (*ALONE, "picker.enabled=true", "picker.pool.selector.app=vllm", "picker.port=9502", "picker.healthPort=9503")


@pytest.fixture(scope="module", params=["manifests", "chart"])
def made(request: pytest.FixtureRequest) -> list[Document]:
    if request.param == "chart":
        return documents(render(*(text for value in CHART for text in ("--set", value))))
    return [document for name in KUSTOMIZATION["resources"] for document in documents((FOLDER / name).read_text())]


@pytest.fixture(scope="module")
def picker(made: list[Document]) -> Document:
    (only,) = of_kind("Deployment", made).values()
    return only


@pytest.fixture(scope="module")
def settings(picker: Document, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The settings that the command makes of the container's arguments, with a key where the Secret is mounted."""
    keys = tmp_path_factory.mktemp("keys")
    (keys / "admin-key").write_text("a" * 32)
    (keys / "admin-key").chmod(0o600)
    (mounted,) = [it["mountPath"] for it in container(picker)["volumeMounts"] if it["name"] == "keys"]
    command, *args = [text.replace(mounted, str(keys)) for text in container(picker)["args"]]
    done = in_process(command, *args, "--print-config")
    assert done.returncode == 0, done.stderr
    return tomllib.loads(done.stdout)


def test_every_file_is_a_resource() -> None:
    names = {path.name for path in FOLDER.glob("*.yaml")}
    assert names == {"kustomization.yaml", *KUSTOMIZATION["resources"]}


def test_the_picker_takes_its_arguments_and_follows_the_pool(made: list[Document], settings: dict[str, Any]) -> None:
    (pool,) = of_kind("InferencePool", made).values()
    assert pool["apiVersion"] == f"{POOL_GROUP}/v1"
    assert settings["discovery"]["sources"] == [f"pool:/{pool['metadata']['name']}"]
    assert settings["router"]["gateway_tls"] is True, "gateways speak TLS with pickers"


def port_in(settings: dict[str, Any], section: str, name: str) -> int:
    return int(settings[section][name].rpartition(":")[2])


def test_ports_are_those_at_which_it_listens(made: list[Document], picker: Document, settings: dict[str, Any]) -> None:
    port = partial(port_in, settings)
    ports = {it["name"]: it["containerPort"] for it in container(picker)["ports"]}
    asked, probed, *others = ports
    assert [ports[asked], ports[probed]] == [port("router", "gateway_bind"), port("router", "gateway_health_bind")]
    assert {ports[name] for name in others} == {port("http", "admin_bind"), port("http", "bind")}
    services = of_kind("Service", made)
    (pool,) = of_kind("InferencePool", made).values()
    wanted = pool["spec"]["endpointPickerRef"]
    (served,) = services[wanted["name"]]["spec"]["ports"]
    assert (served["port"], ports[served["targetPort"]]) == (wanted["port"]["number"], ports[asked])
    name = f"{picker['metadata']['name']}-peers"
    peers = services[name]["spec"]
    assert settings["router"]["peers"] == [f"dns:{name}:{peers['ports'][0]['port']}"]
    assert ports[peers["ports"][0]["targetPort"]] == port("http", "bind")
    assert peers["clusterIP"] == "None"
    assert peers["publishNotReadyAddresses"] is True
    labels = picker["spec"]["template"]["metadata"]["labels"]
    for service in services.values():
        assert service["spec"]["selector"].items() <= labels.items()


def test_probes_ask_for_what_the_health_service_knows(picker: Document) -> None:
    probes = {name: container(picker)[f"{name}Probe"]["grpc"] for name in ("startup", "liveness", "readiness")}
    assert {it["port"] for it in probes.values()} == {port_of(picker, "grpc-health")}
    assert [it["service"] for it in probes.values()] == ["liveness", "liveness", "readiness"]


def test_its_rights_are_those_that_it_needs(made: list[Document], picker: Document) -> None:
    (role,) = of_kind("Role", made).values()  # the chart has no other, as nothing else is enabled
    rights = {(group, resource) for it in role["rules"] for group in it["apiGroups"] for resource in it["resources"]}
    assert rights == {("", "pods"), (POOL_GROUP, "inferencepools")}
    assert all(sorted(it["verbs"]) == ["get", "list", "watch"] for it in role["rules"])
    pod = picker["spec"]["template"]["spec"]
    (binding,) = of_kind("RoleBinding", made).values()
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": pod["serviceAccountName"]}]
    assert pod["automountServiceAccountToken"] is True
    assert pod["enableServiceLinks"] is False
    assert binding["roleRef"]["name"] == role["metadata"]["name"]


def test_it_ends_within_its_time_and_needs_no_rights_on_its_machine(picker: Document, settings: dict[str, Any]) -> None:
    def seconds(text: str) -> float:
        return float(text.removesuffix("s")) if text.endswith("s") else 60 * float(text.removesuffix("m"))

    pod, own = picker["spec"]["template"]["spec"], container(picker)
    assert pod["terminationGracePeriodSeconds"] > seconds(settings["drain_delay"]) + seconds(settings["drain_timeout"])
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert own["securityContext"]["readOnlyRootFilesystem"] is True
    assert own["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    mounted = {it["name"] for it in own["volumeMounts"]}
    assert mounted == {it["name"] for it in pod["volumes"]}


def test_others_than_pickers_may_not_report(made: list[Document], picker: Document, settings: dict[str, Any]) -> None:
    (policy,) = of_kind("NetworkPolicy", made).values()
    labels = picker["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    rules = {port["port"]: rule.get("from") for rule in policy["spec"]["ingress"] for port in rule["ports"]}
    ports = {it["name"]: it["containerPort"] for it in container(picker)["ports"]}
    assert rules.keys() == ports.keys()
    (reports,) = [name for name, number in ports.items() if number == port_in(settings, "http", "bind")]
    assert rules.pop(reports) == [{"podSelector": policy["spec"]["podSelector"]}]
    assert set(map(str, rules.values())) == {"None"}


def test_kubectl_builds_it(tmp_path: Path) -> None:
    done = subprocess.run([tool("kubectl"), "kustomize", str(FOLDER)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    built = documents(done.stdout)
    assert {document["metadata"]["namespace"] for document in built} == {"llm"}
    (deployment,) = of_kind("Deployment", built).values()
    assert container(deployment)["image"] == "registry.example.com/kvatlas:0.1.0"
