"""A real API server with etcd, without kubelets and controllers: the tests play those."""

from __future__ import annotations

import contextlib
import signal
import ssl
import subprocess
import time
from pathlib import Path
from typing import Any, Self

import httpx
import yaml  # type: ignore[import-untyped]
from tests.support.kubernetes import pod, pool

from kvatlas.sim.server import EngineHandle
from kvatlas.sim.server.ports import free_block

BIN = Path("target/k8s/bin")
NAMESPACE, ACCOUNT = "llm", "reader"
START = 120.0
"""Longest time that a start may take, in seconds."""

Object = dict[str, Any]
SEE_PODS: Object = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
SEE_POOLS: Object = SEE_PODS | {"apiGroups": ["inference.networking.k8s.io"], "resources": ["inferencepools"]}
POOLS = f"/apis/inference.networking.k8s.io/v1/namespaces/{NAMESPACE}/inferencepools"
_MERGE = {"Content-Type": "application/merge-patch+json"}


def _openssl(where: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=where, check=True, capture_output=True)


class Cluster:
    """The API server at a port of its own. `kill` and `start` may be called at any time: etcd stays."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port = free_block("127.0.0.1", 3)
        self._keys()
        self._etcd: subprocess.Popen[bytes] | None = None
        self._api: subprocess.Popen[bytes] | None = None
        self.admin: httpx.Client | None = None
        self._addresses: dict[str, str] = {}  # of pods, by their names

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        client, peer = (f"http://127.0.0.1:{self.port + n}" for n in (1, 2))
        etcd = ["--data-dir", "etcd", "--listen-client-urls", client, "--advertise-client-urls", client]
        etcd += [
            "--listen-peer-urls",
            peer,
            "--initial-advertise-peer-urls",
            peer,
            "--initial-cluster",
            f"default={peer}",
        ]
        self._etcd = self._run("etcd", *etcd, "--unsafe-no-fsync")
        trust = ssl.create_default_context(cafile=str(self.home / "ca.crt"))
        headers = {"Authorization": "Bearer admin-token"}
        self.admin = httpx.Client(base_url=self.url, verify=trust, timeout=START, headers=headers)
        try:
            self.start()
            self._prepare()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.kill()  # before etcd, without which it hangs
        if self._etcd is not None:
            self._etcd.kill()
            self._etcd.wait()
        if self.admin is not None:
            self.admin.close()

    def kill(self) -> None:
        """End the API server without warning."""
        if self._api is not None:
            self._api.send_signal(signal.SIGKILL)
            self._api.wait()
            self._api = None

    def start(self) -> None:
        """Start the API server and wait until it is ready."""
        keys = ["--tls-cert-file=tls.crt", "--tls-private-key-file=tls.key", "--token-auth-file=tokens.csv"]
        accounts = ["issuer=https://kubernetes.default.svc", "key-file=sa.key", "signing-key-file=sa.key"]
        self._api = self._run(
            "kube-apiserver",
            *(f"--etcd-servers=http://127.0.0.1:{self.port + 1}", "--bind-address=127.0.0.1"),
            *(f"--secure-port={self.port}", "--advertise-address=127.0.0.1", "--authorization-mode=RBAC"),
            *keys,
            *(f"--service-account-{each}" for each in accounts),
            "--service-cluster-ip-range=10.0.0.0/24",
            # There is no kubelet to give pods what these ask for.
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
            "--endpoint-reconciler-type=none",
        )
        end = time.monotonic() + START
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if self.call("GET", "/readyz", check=False).status_code == 200:
                    return
            assert self._api.poll() is None, (self.home / "kube-apiserver.log").read_text()[-2000:]
            assert time.monotonic() < end, "the API server is not ready in time"
            time.sleep(0.1)

    def call(self, method: str, path: str, body: object = None, *, check: bool = True, **more: Any) -> httpx.Response:
        """A request of the administrator."""
        assert self.admin is not None
        answer = self.admin.request(method, path, json=body, **more)
        assert not check or answer.status_code < 300, f"{method} {path}: {answer.status_code} {answer.text[:2000]}"
        return answer

    # Rights

    def account(self, folder: Path) -> None:
        """Write the credentials of the service account, as a pod has them."""
        folder.mkdir(exist_ok=True)
        (folder / "ca.crt").write_bytes((self.home / "ca.crt").read_bytes())
        (folder / "namespace").write_text(NAMESPACE)
        self.renew(folder)

    def renew(self, folder: Path) -> None:
        """Write another token, as a kubelet does."""
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{ACCOUNT}/token"
        token = self.call("POST", path, {"spec": {"expirationSeconds": 3600}}).json()["status"]["token"]
        (folder / "token.new").write_text(token)
        (folder / "token.new").replace(folder / "token")

    def revoke(self) -> None:
        """Make the service account anew: its tokens are no longer valid."""
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
        self.call("DELETE", f"{path}/{ACCOUNT}")
        self.call("POST", path, {"metadata": {"name": ACCOUNT}})

    def allow(self, *rules: Object) -> None:
        """Give the service account these rights and no others."""
        path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/roles/{ACCOUNT}"
        self.call("PATCH", path, {"rules": list(rules)}, headers=_MERGE)

    def _prepare(self) -> None:
        self.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        self.call("POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", {"metadata": {"name": ACCOUNT}})
        base = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}"
        self.call("POST", f"{base}/roles", {"metadata": {"name": ACCOUNT}, "rules": [SEE_PODS]})
        account = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ACCOUNT}
        self.call(
            "POST", f"{base}/rolebindings", {"metadata": {"name": ACCOUNT}, "roleRef": role, "subjects": [account]}
        )

    # Pods, as a kubelet and controllers change them

    def add(self, name: str, port: int, *, address: str = "127.0.0.1", ready: bool = True, **more: Any) -> None:
        """Create a pod, give it an address, and make it ready."""
        self._addresses[name] = address
        about = pod(name, address, ready=ready, ports={"http": port}, **more)
        status = about.pop("status")
        del about["metadata"]["uid"]
        about["spec"] |= {"nodeName": "node-1", "terminationGracePeriodSeconds": 120}
        about["spec"]["containers"][0]["image"] = "vllm"
        self.call("POST", self._pods(), about)
        self._set_status(name, status)

    def add_engine(self, engine: EngineHandle, **more: Any) -> None:
        """Create the pod of a simulated engine."""
        self.add(engine.name, engine.config.http_port, address=engine.config.host, **more)

    def set_ready(self, name: str, ready: bool) -> None:
        self._set_status(name, pod(name, self._addresses[name], ready=ready)["status"])

    def set_restarts(self, name: str, count: int) -> None:
        self._set_status(name, pod(name, self._addresses[name], restarts=count)["status"])

    def _set_status(self, name: str, status: Object) -> None:
        for each in status["containerStatuses"]:
            each |= {"image": "vllm", "imageID": "vllm", "ready": True}
        status["podIPs"] = [{"ip": status["podIP"]}]
        self.call("PATCH", f"{self._pods(name)}/status", {"status": status}, headers=_MERGE)

    def label(self, name: str, value: str | None) -> None:
        """Set the label app, or take it away."""
        self.call("PATCH", self._pods(name), {"metadata": {"labels": {"app": value}}}, headers=_MERGE)

    def delete(self, name: str) -> None:
        """Begin to end a pod: the kubelet is told, and the pod still runs."""
        self.call("DELETE", self._pods(name), {"gracePeriodSeconds": 120})

    def gone(self, name: str) -> None:
        """End a pod, as the kubelet does in the end."""
        self.call("DELETE", self._pods(name), {"gracePeriodSeconds": 0})

    def ready(self, selector: str = "app=vllm") -> set[str]:
        """The names of the pods that should get requests."""
        found = set()
        for each in self.call("GET", self._pods(), params={"labelSelector": selector}).json()["items"]:
            conditions = {it["type"]: it["status"] for it in each["status"].get("conditions", [])}
            if "deletionTimestamp" not in each["metadata"] and conditions.get("Ready") == "True":
                found.add(each["metadata"]["name"])
        return found

    def deletion_cost(self, name: str) -> str | None:
        """Deletion cost in the annotation of a pod; None if it has none."""
        annotations = self.call("GET", self._pods(name)).json()["metadata"].get("annotations", {})
        cost: str | None = annotations.get("controller.kubernetes.io/pod-deletion-cost")
        return cost

    def _pods(self, name: str = "") -> str:
        return f"/api/v1/namespaces/{NAMESPACE}/pods" + (f"/{name}" if name else "")

    # InferencePools, as an operator installs and changes them

    def install_pools(self) -> None:
        """Make InferencePools known, and wait until they are."""
        about = yaml.safe_load((Path(__file__).parent / "inferencepool.yaml").read_text())
        self.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", about)
        end = time.monotonic() + START
        while self.call("GET", POOLS, check=False).status_code != 200:
            assert time.monotonic() < end, "InferencePools are not served in time"
            time.sleep(0.1)

    def add_pool(self, name: str, labels: dict[str, str], *ports: int) -> None:
        """Create a pool. Its picker does not matter here."""
        about = pool(name, labels, *ports)
        about["apiVersion"] = "inference.networking.k8s.io/v1"
        about["spec"]["endpointPickerRef"] = {"name": "picker", "port": {"number": 9002}}
        self.call("POST", POOLS, about)

    def change_pool(self, name: str, labels: dict[str, str], *ports: int) -> None:
        """Have a pool select other pods, or have other ports."""
        spec = pool(name, labels, *ports)["spec"]
        found = self.call("GET", f"{POOLS}/{name}").json()
        found["spec"] |= spec  # a merge would keep the labels that are to go
        self.call("PUT", f"{POOLS}/{name}", found)

    def remove_pool(self, name: str) -> None:
        self.call("DELETE", f"{POOLS}/{name}")

    # Processes and keys

    def _run(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.home / f"{name}.log").open("ab") as log:
            return subprocess.Popen([BIN.resolve() / name, *arguments], cwd=self.home, stdout=log, stderr=log)

    def _keys(self) -> None:
        here = self.home
        names = "subjectAltName=IP:127.0.0.1,IP:10.0.0.1,DNS:localhost,DNS:kubernetes.default.svc"
        _openssl(here, "genrsa", "-out", "sa.key", "2048")
        request = ["req", "-newkey", "rsa:2048", "-nodes"]
        _openssl(here, *request, "-x509", "-days", "2", "-subj", "/CN=test-ca", "-keyout", "ca.key", "-out", "ca.crt")
        _openssl(here, *request, "-subj", "/CN=kube-apiserver", "-keyout", "tls.key", "-out", "tls.csr")
        (here / "names").write_text(names)
        signing = [
            "x509",
            "-req",
            "-in",
            "tls.csr",
            "-CA",
            "ca.crt",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-days",
            "2",
        ]
        _openssl(here, *signing, "-extfile", "names", "-out", "tls.crt")
        (here / "tokens.csv").write_text('admin-token,admin,1,"system:masters"\n')
