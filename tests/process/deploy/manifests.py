"""The manifests that are deployed, and the tools that render and check them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[3]
CHART = ROOT / "deploy/helm/kvatlas"
KUSTOMIZE = ROOT / "deploy/kubernetes"
RENDERED = KUSTOMIZE / "base/kvatlas.yaml"
VALUES = sorted((Path(__file__).parent / "values").glob("*.yaml"))
KUBERNETES = "1.34.0"  # what the chart is told that it is installed in
TOOLS = ROOT / "target/deploy/bin"  # where `make check-deploy` puts them

WITHOUT_SCHEMA = ("ServiceMonitor", "PrometheusRule", "InferencePool")
"""Kinds of operators and gateways, which Kubernetes itself does not know."""

Document = dict[str, Any]


def tool(name: str) -> str:
    """A program, from `make check-deploy` or from the system. Skips the test if there is neither."""
    path = shutil.which(str(TOOLS / name)) or shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed: `make check-deploy` installs it")
    return path


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([tool("helm"), *arguments], capture_output=True, text=True, check=False)


def render(*arguments: str) -> str:
    """The manifests that the chart makes of values, as text."""
    done = helm("template", "kvatlas", str(CHART), "--kube-version", KUBERNETES, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def documents(text: str) -> list[Document]:
    return [document for document in yaml.safe_load_all(text) if document]


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def of_kind(kind: str, made: list[Document]) -> dict[str, Document]:
    """The manifests of a kind, by their names."""
    return {document["metadata"]["name"]: document for document in made if document["kind"] == kind}


def workloads(made: list[Document]) -> dict[str, Document]:
    """Manifests that run pods, by their names."""
    return of_kind("StatefulSet", made) | of_kind("Deployment", made)


def port_of(of: Document, name: str) -> int:
    """A named port of the only container."""
    (found,) = [it["containerPort"] for it in container(of)["ports"] if it["name"] == name]
    return int(found)


def container(of: Document) -> Document:
    """The only container of a workload."""
    (only,) = of["spec"]["template"]["spec"]["containers"]
    assert isinstance(only, dict)
    return only
