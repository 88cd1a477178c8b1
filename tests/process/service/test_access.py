"""Tests of who may do what: keys, client certificates, hosts, and what happens when their files change."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
from tests.support.certificates import SERVER, make, needs_openssl
from tests.support.engine import BLOCK_SIZE
from tests.support.waiting import until

import kvatlas
from kvatlas._native import Service
from kvatlas.errors import InvalidArgumentError, ServiceError, UnreachableError
from kvatlas.service.config import Config, HttpConfig

from .dialect.tools import DEADLINE, MODEL, Answer, Connection, ask, running
from .process import address_of, logged, serving

ASKS = [
    ("POST", "/query"),
    ("POST", "/query_by_hash"),
    ("POST", "/query_batch"),
    ("POST", "/sites"),
    ("GET", "/sites/status"),
    ("GET", "/workers"),
    ("GET", "/metrics"),
    ("GET", "/openapi.json"),
    ("GET", "/"),
    ("GET", "/nowhere"),
]
CHANGES = [
    ("POST", "/register"),
    ("POST", "/unregister"),
    ("GET", "/dump"),
    ("POST", "/digest"),
    ("POST", "/sites/compare"),
]
OPEN = [("GET", "/health"), ("GET", "/ready")]


def register(service: Service, endpoint: str, key: str | None = None, **more: Any) -> Answer:
    body = {"instance_id": 1, "endpoint": endpoint, "model_name": MODEL, "block_size": BLOCK_SIZE}
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return ask(service.address, "POST", "/register", body | more, headers=headers)


def with_key(address: str, method: str, path: str, key: str | None) -> int:
    """The status of an empty request."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return ask(address, method, path, {} if method == "POST" else None, headers=headers).status


# Keys


def test_the_key_that_asks_changes_nothing() -> None:
    with running(key="ask-key", admin_key="admin-key") as service:
        for method, path in ASKS:
            assert with_key(service.address, method, path, None) == 401, path
            for key in ("ask-key", "admin-key"):
                assert with_key(service.address, method, path, key) not in (401, 403), path
        for method, path in CHANGES:
            assert with_key(service.address, method, path, None) == 401, path
            assert with_key(service.address, method, path, "wrong") == 401, path
            assert with_key(service.address, method, path, "ask-key") == 403, path
            assert with_key(service.address, method, path, "admin-key") not in (401, 403), path
        for method, path in OPEN:
            assert with_key(service.address, method, path, None) == 200, path
        assert register(service, "tcp://127.0.0.1:9", "ask-key").code == "forbidden"
        assert register(service, "tcp://127.0.0.1:9", "admin-key").status == 201


@pytest.mark.parametrize("written", ["0a1b2c-key", "%30a1b2c-key", "%2530a1b2c-key", "MGExYjJjLWtleQ=="])
def test_a_key_in_a_line_is_in_no_answer(written: str) -> None:
    with running(key="0a1b2c-key") as service:
        head = {"Authorization": "Bearer 0a1b2c-key"}
        answer = ask(service.address, "GET", "/health", headers=head | {"X-Request-Id": written})
        assert answer.status == 200
        assert written not in str(answer.headers)
        for path in (f"/health?key={written}", f"/{written}", f"/workers?model_name={written}"):
            answer = ask(service.address, "GET", path, headers=head)
            assert (answer.status, answer.code) == (400, "key_in_target")
            assert "0a1b2c" not in str(answer.headers) + str(answer.body)


def test_an_admin_key_alone_lets_everybody_ask() -> None:
    with running(admin_key="admin-key") as service:
        for method, path in ASKS:
            assert with_key(service.address, method, path, None) not in (401, 403), path
        for method, path in CHANGES:
            assert with_key(service.address, method, path, None) == 401, path
            assert with_key(service.address, method, path, "admin-key") not in (401, 403), path


def test_keys_are_read_again(tmp_path: Path) -> None:
    key, admin = tmp_path / "key", tmp_path / "admin"
    key.write_text("old-key\n")
    admin.write_text("old-admin\n")
    with running(key_file=str(key), admin_key_file=str(admin)) as service:
        assert with_key(service.address, "GET", "/workers", "old-key") == 200
        with Connection(service.address) as client:
            headers = {"Authorization": "Bearer old-key"}
            assert client.ask("GET", "/workers", headers=headers).status == 200
            key.write_text("new-key\n")
            service.reload()
            assert client.ask("GET", "/workers", headers=headers).status == 401, "on an open connection too"
        assert with_key(service.address, "GET", "/workers", "new-key") == 200
        admin.write_text("new-admin\n")
        until(lambda: with_key(service.address, "GET", "/dump", "new-admin") == 200)
        assert with_key(service.address, "GET", "/dump", "old-admin") == 401
        # What cannot be used changes nothing.
        for useless in ("", "two words"):
            key.write_text(useless)
            with pytest.raises(ServiceError, match="key") as caught:
                service.reload()
            assert "two words" not in str(caught.value)
        key.unlink()
        with pytest.raises(ServiceError, match="cannot read"):
            service.reload()
        assert with_key(service.address, "GET", "/workers", "new-key") == 200
        assert with_key(service.address, "GET", "/workers", None) == 401


def test_a_key_that_cannot_be_read_is_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match="nowhere"), running(admin_key_file=str(tmp_path / "nowhere")):
        pass


def test_sighup_reads_keys_again_and_no_key_is_logged(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("first-secret")
    flags = ("--key-file", str(key), "--log-level", "debug")
    with serving(*flags, env={"KVATLAS_ADMIN_KEY": "admin-secret"}) as process:
        address, _ = address_of(process)
        assert with_key(address, "GET", "/workers", "first-secret") == 200
        assert with_key(address, "GET", "/dump", "first-secret") == 403
        assert with_key(address, "GET", "/dump", "admin-secret") == 200
        key.write_text("second-secret")
        process.send_signal(signal.SIGHUP)
        until(lambda: with_key(address, "GET", "/workers", "second-secret") == 200)
        key.write_text("third secret")
        process.send_signal(signal.SIGHUP)
        _, log = logged(process, "cannot be read again")
        assert with_key(address, "GET", "/workers", "second-secret") == 200, "it lives, with the key that it had"
        process.send_signal(signal.SIGTERM)
        log += process.communicate(timeout=DEADLINE)[1]
        assert process.returncode == 0
    assert "secret" not in log.replace(str(key), "")


def test_sighup_reads_settings_again(tmp_path: Path) -> None:
    path = tmp_path / "kvatlas.toml"
    path.write_text('[http]\naccess_log = "off"\n[log]\nformat = "json"\n')
    with serving("--config", str(path)) as process:
        address, log = address_of(process)
        assert ask(address, "GET", "/version", headers={"X-Request-Id": "before"}).status == 200
        path.write_text('drain_delay = "100ms"\n[http]\naccess_log = "on"\nmax_body = "1MiB"\n[log]\nformat = "text"\n')
        process.send_signal(signal.SIGHUP)
        log += logged(process, "the settings were read again")[1]
        assert ask(address, "GET", "/version", headers={"X-Request-Id": "after"}).status == 200
        process.send_signal(signal.SIGTERM)
        log += process.communicate(timeout=DEADLINE)[1]
        assert process.returncode == 0
    messages = [json.loads(line)["message"] for line in log.splitlines()]
    assert 'http.max_body: "8MiB" → "1MiB" needs a restart' in messages
    assert 'log.format: "json" → "text" needs a restart' in messages
    assert 'http.access_log: "off" → "on" from now on' in messages
    assert "stopping: not ready, but accepting requests for 0.1 s" in messages
    assert "after" in log
    assert '"before"' not in log


# Certificates


SIGNED = ("-addext", "basicConstraints=critical,CA:FALSE")


@needs_openssl
def test_a_certificate_is_read_again_whole(tmp_path: Path) -> None:
    cert, key = make(tmp_path, "server", "/CN=first", *SERVER)

    def subject() -> str:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with Connection(service.address, context.wrap_socket) as client:
            assert client.ask("GET", "/health").status == 200
            sock = client.socket
            assert isinstance(sock, ssl.SSLSocket)
            return ssl.DER_cert_to_PEM_cert(sock.getpeercert(binary_form=True) or b"")

    with running(tls={"cert": str(cert), "key": str(key)}) as service:
        assert subject() == cert.read_text()
        before = cert.read_text()
        other_cert, other_key = make(tmp_path, "other", "/CN=second", *SERVER)
        cert.write_bytes(other_cert.read_bytes())  # half of a change: the key is still the old one
        with pytest.raises(ServiceError, match="certificate"):
            service.reload()
        assert subject() == before
        key.write_bytes(other_key.read_bytes())
        until(lambda: subject() == other_cert.read_text())


@needs_openssl
def test_clients_may_need_a_certificate(tmp_path: Path) -> None:
    cert, key = make(tmp_path, "server", "/CN=localhost", *SERVER)
    authorities = {name: make(tmp_path, name, f"/CN={name}") for name in ("own", "other")}
    (client_cert, client_key), (stranger_cert, stranger_key) = (
        make(tmp_path, f"client-of-{name}", "/CN=router", *SIGNED, "-CA", str(ca), "-CAkey", str(ca_key))
        for name, (ca, ca_key) in authorities.items()
    )
    client_ca = str(authorities["own"][0])

    def status(own: tuple[Path, Path] | None) -> int:
        context = ssl.create_default_context(cafile=str(cert))
        if own:
            context.load_cert_chain(own[0], own[1])
        with Connection(service.address, lambda raw: context.wrap_socket(raw, server_hostname="localhost")) as client:
            return client.ask("GET", "/health").status

    with running(tls={"cert": str(cert), "key": str(key), "client_ca": client_ca}) as service:
        assert status((client_cert, client_key)) == 200
        for own in (None, (stranger_cert, stranger_key)):
            with pytest.raises((OSError, EOFError)):
                status(own)


@needs_openssl
def test_clients_show_their_certificate(tmp_path: Path) -> None:
    cert, key = make(tmp_path, "server", "/CN=localhost", *SERVER)
    ca, ca_key = make(tmp_path, "own", "/CN=own")
    own = make(tmp_path, "client", "/CN=router", *SIGNED, "-CA", str(ca), "-CAkey", str(ca_key))
    stranger = make(tmp_path, "stranger", "/CN=stranger")
    http = HttpConfig(bind="127.0.0.1:0", tls_cert=cert, tls_key=key, tls_client_ca=ca)
    with kvatlas.Service(config=Config(http=http)) as service:
        with service.client(client_cert=own) as client:
            assert client.health()
            assert client.workers() == []

        async def ask_async() -> bool:
            async with service.async_client(client_cert=own) as client:
                return await client.health()

        assert asyncio.run(ask_async())
        context = ssl.create_default_context(cafile=str(cert))
        context.load_cert_chain(*own)
        with kvatlas.Client(service.url, ssl_context=context) as client:
            assert client.health()
        for wrong in (None, stranger):
            with service.client(client_cert=wrong) as client, pytest.raises(UnreachableError):
                client.health()
        for unusable in ((own[0], key), (tmp_path / "nowhere", own[1])):
            with pytest.raises(InvalidArgumentError, match="client_cert") as refused:
                service.client(client_cert=unusable)
            assert refused.value.code == "invalid_certificate"
        with pytest.raises(InvalidArgumentError) as refused:
            kvatlas.Client(service.url, ssl_context=context, client_cert=own)
        assert refused.value.code == "conflicting_arguments"


@needs_openssl
def test_a_client_with_a_certificate_trusts_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cert, key = make(tmp_path, "server", "/CN=localhost", *SERVER)
    ca, ca_key = make(tmp_path, "own", "/CN=own")
    own = make(tmp_path, "client", "/CN=router", *SIGNED, "-CA", str(ca), "-CAkey", str(ca_key))
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    tls = {"cert": str(cert), "key": str(key), "client_ca": str(ca)}
    with running(tls=tls) as service, kvatlas.Client(f"https://{service.address}", client_cert=own) as client:
        assert client.health()


# Hosts


def test_other_peoples_web_pages_are_kept_out() -> None:
    def status(service: Service, host: str, key: str | None = None) -> int:
        headers = {"Host": host} | ({"Authorization": f"Bearer {key}"} if key else {})
        return ask(service.address, "GET", "/workers", headers=headers).status

    with running(hosts=["index.internal"]) as service:
        for own in (service.address, "localhost", "localhost:1", "[::1]:8090", "index.internal"):
            assert status(service, own) == 200, own
        for other in ("evil.example", "evil.example:8090", "localhost.evil.example", "10.0.0.1"):
            assert status(service, other) == 421, other
        refused = ask(service.address, "GET", "/health", headers={"Host": "evil.example"})
        assert refused.code == "wrong_host"
        with Connection(service.address) as old:
            old.send(b"GET /health HTTP/1.0\r\n\r\n")
            assert old.read().status == 200
    with running(key="k") as service:
        assert status(service, "evil.example", "k") == 200, "a page does not know the key"
    with running(bind="0.0.0.0:0") as service:
        port = service.address.rpartition(":")[2]
        assert ask(f"127.0.0.1:{port}", "GET", "/health", headers={"Host": "any.example"}).status == 200
    with running(bind="0.0.0.0:0", hosts=["index.internal"]) as service:
        port = service.address.rpartition(":")[2]
        # An address is no name that a page could have.
        for host, wanted in (("index.internal:1", 200), ("10.0.0.1:1", 200), ("evil.example", 421)):
            assert ask(f"127.0.0.1:{port}", "GET", "/workers", headers={"Host": host}).status == wanted, host


@pytest.mark.parametrize(
    "foreign",
    [{"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}],
    ids=str,
)
def test_web_pages_of_others_neither_ask_nor_change(foreign: dict[str, str]) -> None:
    with running(admin_key="a") as service:
        for method, path in [*ASKS, *CHANGES]:
            body: dict[str, str] | None = {} if method == "POST" else None
            key = {"Authorization": "Bearer a"} if (method, path) in CHANGES else {}
            answer = ask(service.address, method, path, body, headers=foreign | key)
            is_refused = method == "POST" or (method, path) in CHANGES
            assert (answer.status == 403) == is_refused, path
            assert not is_refused or answer.code == "foreign_origin"
        own = {"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}
        assert ask(service.address, "POST", "/query", {}, headers=own).status == 422
        # With the key it is no page that knows nothing.
        asked = ask(service.address, "POST", "/query", {}, headers=foreign | {"Authorization": "Bearer a"})
        assert asked.status == 422


# Endpoints


def test_without_a_key_engines_elsewhere_must_be_listed() -> None:
    with running() as service:
        for rank, own in enumerate(("tcp://127.0.0.1:9", "tcp://[::1]:9", "tcp://localhost:9")):
            assert register(service, own, dp_rank=rank).status == 201, own
        for other in ("tcp://10.0.0.1:9", "tcp://169.254.169.254:80", "tcp://host-1:9", "ipc:///run/docker.sock"):
            refused = register(service, other, dp_rank=50)
            assert (refused.status, refused.code) == (403, "endpoint_not_allowed"), other
            assert "streams.allow" in refused.json["error"]
        refused = register(service, "tcp://127.0.0.1:9", dp_rank=50, replay_endpoint="tcp://10.0.0.1:9")
        assert refused.code == "endpoint_not_allowed"
    with running(admin_key="k") as service:
        assert register(service, "tcp://10.0.0.1:9", "k").status == 201


def test_only_listed_engines_are_followed() -> None:
    allow = ["10.0.0.0/8", "host-*", "ipc:///run/engines/*"]
    with running({"allow": allow}, key="k") as service:
        for at, (endpoint, status) in enumerate(
            [
                ("tcp://10.1.2.3:9", 201),
                ("tcp://host-7:9", 201),
                ("ipc:///run/engines/a", 201),
                ("tcp://127.0.0.1:9", 403),
                ("tcp://other:9", 403),
                ("ipc:///run/a", 403),
            ]
        ):
            assert register(service, endpoint, "k", dp_rank=at).status == status, endpoint
    with pytest.raises(ServiceError, match=r"streams\.allow"), running({"allow": ["10.0.0.0/99"]}):
        pass


def test_engines_name_only_themselves() -> None:
    def body(endpoint: str) -> str:
        about = {"instance_id": endpoint, "endpoint": endpoint, "model_name": MODEL, "block_size": BLOCK_SIZE}
        return json.dumps(about)

    with running() as service:
        assert service.register(body("tcp://10.0.0.1:9"))  # the operator's own
        assert service.register(body("tcp://host-1:9"), "host-1")
        with pytest.raises(ServiceError, match="--allow") as caught:
            service.register(body("tcp://host-2:9"), "host-1")
        assert caught.value.code == "endpoint_not_allowed"


def test_errors_do_not_tell_what_listens_where() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        ports = [silent.getsockname()[1], closed.getsockname()[1]]
        with running({"reconnect_max": 0.1}) as service, Connection(service.address) as client:
            http = int(service.address.rpartition(":")[2])
            hosts = [f"tcp://127.0.0.1:{port}" for port in (*ports, http)]
            for rank, endpoint in enumerate(hosts):
                assert register(service, endpoint, dp_rank=rank).status == 201

            def errors() -> list[str | None]:
                (worker,) = client.ask("GET", "/workers").json
                return [stream.get("last_error") for stream in worker["streams"].values()]

            until(lambda: None not in errors())
            assert set(errors()) == {"cannot connect"}
