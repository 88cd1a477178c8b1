"""A running router that reads its settings again (SIGHUP)."""

from __future__ import annotations

import http.client
import signal
from pathlib import Path

from tests.support.engine import Engine

from .running import DEADLINE, Router, wait_until

FILE = """
drain_delay = "{delay}"
{more}

[http]
hosts = [{hosts}]
origins = [{origins}]
access_log = "{access_log}"
max_body = "{max_body}"

[log]
level = "{level}"

[router]
no_events = true
tokenizer = "none"
policy = "round-robin"

{engines}
"""
BEFORE = {
    "delay": "0s",
    "more": "",
    "hosts": "",
    "origins": "",
    "access_log": "off",
    "max_body": "1MiB",
    "level": "info",
}


def entry(name: str, engine: Engine) -> str:
    return f'[[engine]]\nname = "{name}"\nurl = "{engine.url}"\n'


def ask(router: Router, host: str = "127.0.0.1", origin: str | None = None) -> tuple[int, str | None]:
    """The status of an answer, and the origin that may read it."""
    connection = http.client.HTTPConnection("127.0.0.1", router.port, timeout=DEADLINE)
    headers = {"host": host} | ({} if origin is None else {"origin": origin})
    try:
        connection.request("GET", "/v1/models", headers=headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status, answer.getheader("access-control-allow-origin")
    finally:
        connection.close()


def test_settings_that_change_while_it_runs(engine: Engine, other: Engine, tmp_path: Path) -> None:
    path = tmp_path / "router.toml"

    def write(engines: str, **changed: str) -> None:
        path.write_text(FILE.format(**BEFORE | changed, engines=engines))

    def reread(router: Router) -> None:
        count = router.log.count("the settings were read again")
        router.process.send_signal(signal.SIGHUP)
        wait_until(lambda: router.log.count("the settings were read again") > count, "they are read")

    write(entry("one", engine))
    with Router(flags=("--config", str(path))) as router:
        assert ask(router, "router.internal")[0] == 421
        assert ask(router, origin="https://chat.example")[1] is None
        write(
            entry("one", engine) + entry("two", other),
            delay="200ms",
            more='model = "other"',
            hosts='"router.internal"',
            origins='"https://chat.example"',
            access_log="on",
            max_body="2MiB",
        )
        reread(router)
        assert ask(router, "router.internal")[0] == 200
        assert ask(router, origin="https://chat.example")[1] == "https://chat.example"
        wait_until(lambda: '"/v1/models"' in router.log or "path=/v1/models" in router.log, "requests are logged")
        wait_until(lambda: [each["name"] for each in router.workers()] == ["one", "two"], "there is another engine")
        assert 'model: not set → "other" needs a restart' in router.log
        assert 'http.max_body: "1MiB" → "2MiB" needs a restart' in router.log
        assert 'http.hosts: [] → ["router.internal"] from now on' in router.log
        assert "engines of the configuration: added: two" in router.log

        write(entry("two", other), access_log="on", level="warning", delay="200ms")
        router.process.send_signal(signal.SIGHUP)
        wait_until(lambda: [each["name"] for each in router.workers()] == ["two"], "one of them is gone")
        lines = router.log.count("/v1/models")
        assert ask(router)[0] == 200
        assert ask(router, "router.internal")[0] == 421
        assert router.log.count("/v1/models") == lines, "a request is no warning"

        path.write_text("drain_dely = 1")
        router.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "did you mean drain_delay" in router.log, "the error is logged")
        assert "so all of them stay as they are" in router.log
        assert ask(router)[0] == 200

        write(entry("two", other), level="info", delay="300ms")
        reread(router)
        router.process.send_signal(signal.SIGTERM)
        assert router.process.wait(DEADLINE) == 0
        wait_until(lambda: "accepting requests for 0.3 s" in router.log, "the last delay counts")


def test_keys_that_cannot_be_read_are_logged_by_the_router(engine: Engine, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("one-key\n")
    key.chmod(0o600)
    with Router(engine, flags=("--no-events", "--tokenizer", "none", "--key-file", str(key)), ready=False) as router:
        key.unlink()
        router.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "the old ones stay in use" in router.log, "it is logged")
