"""All that is deployed, and the chart's other values, as the API server itself takes them: a dry run of each object."""

from __future__ import annotations

import shutil

import pytest
from tests.process.deploy.manifests import KUSTOMIZE, RENDERED, TOOLS, VALUES, Document, documents, render

from kvatlas.cli.epp_flags import POOL_GROUP

from .cluster import NAMESPACE, Cluster

GROUPS = {
    "apps/v1": ("StatefulSet", "Deployment"),
    "inference.networking.k8s.io/v1": ("InferencePool",),
    "autoscaling/v2": ("HorizontalPodAutoscaler",),
    "networking.k8s.io/v1": ("NetworkPolicy",),
    "policy/v1": ("PodDisruptionBudget",),
    "rbac.authorization.k8s.io/v1": ("Role", "RoleBinding"),
    "v1": ("ConfigMap", "Service", "ServiceAccount"),
}
PLURALS = {"NetworkPolicy": "networkpolicies"}
OTHERS = (
    "ServiceMonitor",
    "PrometheusRule",
    "ScaledObject",
    "Kustomization",
)  # of operators, which the API server alone does not know


def path_of(document: Document) -> str:
    group, kind = document["apiVersion"], document["kind"]
    assert kind in GROUPS[group], kind
    namespace = document["metadata"].get("namespace", NAMESPACE)
    base = "/api/v1" if group == "v1" else f"/apis/{group}"
    return f"{base}/namespaces/{namespace}/{PLURALS.get(kind, kind.lower() + 's')}"


def test_the_api_server_takes_every_object(cluster: Cluster) -> None:
    cluster.call("POST", "/api/v1/namespaces", {"metadata": {"name": "other"}})
    cluster.install_pools()
    plain = [*(KUSTOMIZE / "autoscaling").glob("*.yaml"), *(KUSTOMIZE / "endpoint-picker").glob("*.yaml")]
    texts = [RENDERED.read_text(), *(path.read_text() for path in sorted(plain))]
    if shutil.which(str(TOOLS / "helm")) or shutil.which("helm"):
        texts += [render("--values", str(path)) for path in VALUES]
    count = 0
    for text in texts:
        for document in documents(text):
            if document["kind"] in OTHERS:
                continue
            params = {"dryRun": "All", "fieldValidation": "Strict"}
            cluster.call("POST", path_of(document), document, params=params)
            count += 1
    assert count > 20


PICKER = ["serve.enabled=false", "router.enabled=false", "engines.pods=null"]
PICKER += ["picker.enabled=true", "picker.pool.selector.app=vllm"]


@pytest.mark.parametrize(
    ("values", "patches", "sees"),
    [
        ([], False, set()),
        (["engines.podDeletionCost=60s"], True, set()),
        (PICKER, False, {"inferencepools"}),
        (
            [*PICKER, "engines.podDeletionCost=60s", "picker.pool.objectives=llm-d.ai/v1alpha2"],
            True,
            {"inferencepools", "inferenceobjectives"},
        ),
    ],
)
def test_the_role_is_enough_and_no_more(cluster: Cluster, values: list[str], patches: bool, sees: set[str]) -> None:
    """The chart's Role, bound to its account: what discovery asks is allowed there, and nothing else."""
    made = documents(render(*(f"--set={value}" for value in values)) if values else RENDERED.read_text())
    for kind in ("ServiceAccount", "Role", "RoleBinding"):
        (document,) = [document for document in made if document["kind"] == kind]
        document["metadata"]["name"] += "-chart"
        for subject in document.get("subjects", []):
            subject |= {"name": subject["name"] + "-chart", "namespace": NAMESPACE}
        if kind == "RoleBinding":
            document["roleRef"]["name"] += "-chart"
        cluster.call("POST", path_of(document), document)
    user = f"system:serviceaccount:{NAMESPACE}:kvatlas-chart"

    def allowed(verb: str, resource: str, namespace: str, group: str = "") -> bool:
        attributes = {"verb": verb, "group": group, "resource": resource, "namespace": namespace}
        review = {"spec": {"user": user, "resourceAttributes": attributes}}
        answer = cluster.call("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review).json()
        return bool(answer["status"]["allowed"])

    assert all(allowed(verb, "pods", NAMESPACE) for verb in ("get", "list", "watch"))
    assert not any(allowed(verb, "pods", NAMESPACE) for verb in ("update", "delete", "create"))
    assert allowed("patch", "pods", NAMESPACE) is patches
    assert not allowed("list", "secrets", NAMESPACE)
    assert not allowed("list", "pods", "default")
    for resource, group in (("inferencepools", POOL_GROUP), ("inferenceobjectives", "llm-d.ai")):
        found = {verb for verb in ("get", "list", "watch", "patch") if allowed(verb, resource, NAMESPACE, group)}
        assert found == ({"get", "list", "watch"} if resource in sees else set()), resource
