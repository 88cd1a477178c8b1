"""Configurations that are refused, and the words in which they are."""

import re
from pathlib import Path
from typing import Any

import pytest

from kvatlas.errors import ConfigError
from kvatlas.service import (
    Config,
    Engine,
    HttpConfig,
    RelayConfig,
    SnapshotConfig,
    Stream,
    StreamConfig,
    read_config,
)
from kvatlas.service.config.sharing import SitesConfig

REFUSED_ENV = [
    ({"KVATLAS_STALE_AFTR": "1"}, "unknown environment variable KVATLAS_STALE_AFTR: did you mean KVATLAS_STALE_AFTER?"),
    ({"KVATLAS_ENGINE": "http://a"}, "unknown environment variable KVATLAS_ENGINE: did you mean KVATLAS_ENGINES?"),
    (
        {"KVATLAS_RELAY_READER_KEY": "k"},
        "unknown environment variable KVATLAS_RELAY_READER_KEY: did you mean KVATLAS_RELAY_KEY?",
    ),
    ({"KVATLAS_QQQQ": "1"}, "unknown environment variable KVATLAS_QQQQ: no setting has this name"),
    ({"KVATLAS_PORT": "80"}, "unknown environment variable KVATLAS_PORT"),
    ({"KVATLAS_STALE_AFTER": ""}, 'KVATLAS_STALE_AFTER must be a duration above 0: "30s", "500ms", "2m", or a number'),
    ({"KVATLAS_KEY": "a b"}, "KVATLAS_KEY must hold one key of visible ASCII characters without white space"),
    ({"KVATLAS_KEY": ""}, "KVATLAS_KEY must hold one key"),
    ({"KVATLAS_KEY": "a", "KVATLAS_KEY_FILE": "b"}, "KVATLAS_KEY and KVATLAS_KEY_FILE are both set: set one of them"),
    (
        {"KVATLAS_ENGINE_KEY": "a", "KVATLAS_ENGINE_KEY_FILE": "b"},
        "KVATLAS_ENGINE_KEY and KVATLAS_ENGINE_KEY_FILE are both set",
    ),
    ({"KVATLAS_CONFIG": "nowhere.toml"}, "cannot read nowhere.toml: No such file or directory"),
    ({"KVATLAS_CONFIG": ""}, 'KVATLAS_CONFIG must be the path of a file, got ""'),
    ({"KVATLAS_STREAMS": "w"}, 'KVATLAS_STREAMS: stream "w": a stream is WORKER=tcp://HOST:PORT'),
]


@pytest.mark.parametrize(("env", "message"), REFUSED_ENV)
def test_refused_variables(env: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_config({}, env)
    assert message in str(caught.value)
    assert caught.value.code == "invalid_config"


REFUSED_FLAGS = [
    ("http.bind", "8090", '--bind must be an IP address and a port: "127.0.0.1:8090"'),
    ("http.bind", "example.org:1", "--bind must be an IP address"),
    ("http.bind", "::1:80", "--bind must be an IP address"),
    ("http.bind", "127.0.0.1:65536", "--bind must be an IP address"),
    ("http.bind", "127.0.0.1:-1", "--bind must be an IP address"),
    ("http.threads", "-1", "--http-threads must be an integer from 0 to 1024, got -1"),
    ("http.threads", "two", '--http-threads must be an integer from 0 to 1024, got "two"'),
    (
        "http.max_body",
        "0",
        '--max-body must be a size of at least 1 byte: "8MiB", "500kB", or a number of bytes, got "0"',
    ),
    ("http.max_body", "8 miles", "--max-body must be a size"),
    ("http.max_body", "1.5", "--max-body must be a size"),
    ("http.body_memory", "1MiB", "http.body_memory must be at least twice http.max_body, 16777216 bytes, got 1048576"),
    ("http.untrusted", "leave", '--untrusted must be one of "leave-out", "flag", got "leave"'),
    ("streams.stale_after", "0", "--stale-after must be a duration above 0"),
    ("streams.stale_after", "-1s", "--stale-after must be a duration"),
    ("streams.stale_after", "5 parsecs", "--stale-after must be a duration"),
    ("streams.stale_after", "400d", "--stale-after must be a duration"),
    ("streams.stale_after", "nan", "--stale-after must be a duration"),
    ("streams.stale_after", "1e400", "--stale-after must be a duration"),
    ("streams.reconnect_min", "6s", "streams.reconnect_min (6 s) must not be above streams.reconnect_max (5 s)"),
    ("http.tls_cert", "c", "http.tls_key is missing: TLS needs both http.tls_cert and http.tls_key"),
    ("http.tls_key", "k", "http.tls_cert is missing"),
    ("block_size", "0", "--block-size must be an integer from 1 to 1048576, got 0"),
    ("discovery.events_port", "70000", "--events-port must be an integer from 1 to 65535, got 70000"),
    ("log.level", "loud", '--log-level must be one of "debug", "info", "warning", "error", got "loud"'),
    ("model", " ", "--model must be a string that is not empty"),
]


@pytest.mark.parametrize(("path", "text", "message"), REFUSED_FLAGS)
def test_refused_flags(path: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_config({path: text}, {})
    assert message in str(caught.value)


REFUSED_FILES = [
    ("x = [", "k.toml is not TOML: "),
    ("[[[", "k.toml is not TOML: "),
    ('stale_after = "1s"', "k.toml, line 1: unknown key stale_after: did you mean streams.stale_after?"),
    (
        '\n[streams]\nstale_afer = "1s"',
        "k.toml, line 3: unknown key streams.stale_afer: did you mean streams.stale_after?",
    ),
    ("[stream]\nthreads = 1", "k.toml, line 1: stream must be tables, [[stream]], or a list of strings"),
    ('engines = ["http://a"]', "k.toml, line 1: unknown key engines: did you mean [[engine]]?"),
    (
        "[relay]\nreader_key_file = 'k'",
        "k.toml, line 2: unknown key relay.reader_key_file: did you mean relay.key_file?",
    ),
    ("http = 3", "k.toml, line 1: http must be a table, [http], got 3"),
    ("[http]\nqqqqqqq = 1", "k.toml, line 2: unknown key http.qqqqqqq: it must be one of bind, admin_bind, threads, "),
    (
        '[http]\nkey = "k"',
        "k.toml, line 2: http.key is not allowed in a configuration file: use http.key_file or KVATLAS_KEY",
    ),
    (
        '[discovery]\nkey = "k"',
        "line 2: discovery.key is not allowed in a configuration file: use discovery.key_file or",
    ),
    ("[streams]\n\nstale_after = true", "k.toml, line 3: streams.stale_after must be a duration above 0"),
    ("[streams]\nstale_after = inf", "line 2: streams.stale_after must be a duration"),
    ('[streams]\nreplay_attempts = "3"', 'line 2: streams.replay_attempts must be an integer from 1 to 1000, got "3"'),
    ("[streams]\nreplay_attempts = 3.0", "line 2: streams.replay_attempts must be an integer from 1 to 1000, got 3.0"),
    ("model = 3", "line 1: model must be a string that is not empty, got 3"),
    ("engine = 3", "line 1: engine must be tables, [[engine]], or a list of strings, got 3"),
    ("[engine]\nurl = 'http://a'", "line 1: engine must be tables, [[engine]], or a list of strings"),
    ("engine = [3]", "engine must be Engine, a string or a table, got int"),
    ("[[engine]]\nurl = 'http://a'\n\n[[engine]]\nname = 'b'", "k.toml, line 4: engine: url is missing"),
    ("[[engine]]\nurl = 'http://a'\nuri = 'b'", "k.toml, line 1: engine: unknown key \"uri\": did you mean 'url'?"),
    ("[[engine]]\nurl = 'http://a'\nblock_size = 0", 'engine "http://a": block_size must be an integer from 1 to'),
    ("[[stream]]\nworker = 'a'", "k.toml, line 1: stream: endpoint is missing"),
    (
        "[[stream]]\nworker = 'a'\nendpoint = 'tcp://h:1'",
        'stream of worker "a": model is missing: add model=NAME, or set --model for all',
    ),
    ("model='m'\n[[stream]]\nworker = 'a'\nendpoint = 'tcp://h:1'", 'stream of worker "a": block_size is missing'),
    ("engine = ['http://a:1', 'http://a:1']", 'engines http://a:1 and http://a:1 are both named "a:1"'),
]


@pytest.mark.parametrize(("text", "message"), REFUSED_FILES)
def test_refused_files(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "k.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_config({}, {}, file)
    assert message in str(caught.value)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "k.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="it is not UTF-8 text"):
        read_config({}, {}, tmp_path / "k.toml")
    with pytest.raises(ConfigError, match="Is a directory"):
        read_config({}, {}, tmp_path)


REFUSED_ENTRIES = [
    (
        Engine,
        "host:8000",
        "an engine is http://HOST:PORT, but the scheme is missing or unknown: did you mean http://host:8000?",
    ),
    (Engine, "ftp://h", "the scheme is missing or unknown"),
    (Engine, "http://", "the host is missing"),
    (Engine, "http://h:x", "an engine is http://HOST:PORT"),
    (Engine, "http://h:99999", "an engine is http://HOST:PORT"),
    (Engine, "http://h/?a=b", "it must not have a query"),
    (Engine, "http://[::1", "an engine is http://HOST:PORT"),
    (Engine, f"{'n' * 257}=http://h", "name must be a string of 1 to 256 bytes"),
    (Stream, "tcp://h:1", "a stream is WORKER=tcp://HOST:PORT"),
    (Stream, "=tcp://h:1", "a stream is WORKER=tcp://HOST:PORT"),
    (Stream, "w=http://h:1", "endpoint must be tcp://HOST:PORT or ipc://PATH"),
    (
        Stream,
        "w=tcp://h",
        'endpoint must be tcp://HOST:PORT or ipc://PATH, or bind://PORT for an engine that connects, got "tcp://h"',
    ),
    (Stream, "w=tcp://h:1,replay_endpoint=h:2", "replay_endpoint must be tcp://HOST:PORT or ipc://PATH"),
    (Stream, "w=tcp://h:1,rank=-1", "rank must be an integer from 0 to 4294967295, got -1"),
    (Stream, "w=tcp://h:1,rank=1,rank=2", "rank is given twice"),
    (Stream, "w=tcp://h:1,rnak=1", "unknown key \"rnak\": did you mean 'rank'?"),
    (Stream, "w=tcp://h:1,rank", '"rank" is not KEY=VALUE'),
    (Stream, "w=tcp://h:1,block_size=x", "block_size must be an integer"),
]


@pytest.mark.parametrize(("kind", "text", "message"), REFUSED_ENTRIES)
def test_refused_engines_and_streams(kind: type[Engine] | type[Stream], text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        kind.parse(text)
    assert message in str(caught.value)


def test_names_must_not_clash() -> None:
    streams = ("a=tcp://h:1", "a=tcp://h:2,rank=1")
    both: Any = {"model": "m", "block_size": 16}
    assert len(Config(static_streams=streams, **both).static_streams) == 2  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="rank 0 has two streams"):
        Config(static_streams=("a=tcp://h:1", "a=tcp://h:2"), **both)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match='worker "a" of a stream has the name of engine http://h'):
        Config(engines=("a=http://h",), static_streams=streams, **both)  # type: ignore[arg-type]


def test_settings_of_a_program_are_checked_too() -> None:
    for make, message in (
        (lambda: StreamConfig(stale_after=-1), "streams.stale_after must be a duration above 0"),
        (lambda: HttpConfig(threads=True), "http.threads must be an integer"),
        (lambda: HttpConfig(key="a\nb"), "http.key must hold one key"),
        (lambda: HttpConfig(key="a", key_file=Path("b")), "http.key and http.key_file are both given"),
        (
            lambda: Config(streams=StreamConfig(keyed_identity="on"), snapshot=SnapshotConfig(dir=Path("d"))),
            "streams.keyed_identity and snapshot.dir are both set",
        ),
        (
            lambda: RelayConfig(publish="nats://a:4222", source="nats://b:4222"),
            "relay.publish and relay.source are both set",
        ),
        (
            lambda: RelayConfig(source="nats://a:4222, http://b"),
            "relay.source must be servers of NATS, nats://HOST:PORT",
        ),
        (lambda: RelayConfig(publish="nats://a:4222", snapshots="on"), "relay.snapshots is for readers"),
        (
            lambda: RelayConfig(source="nats://a:4222,tcp://b:5557"),
            "without NATS, run kvatlas serve beside the engines",
        ),
        (lambda: RelayConfig(publish="tcp://0.0.0.0:1"), "relay.publish must be servers of NATS, nats://HOST:PORT"),
        (lambda: RelayConfig(stream="a b"), "relay.stream must be a name of JetStream"),
        (
            lambda: Config(relay=RelayConfig(key_file=Path("k")), sites=SitesConfig(url="http://a:1", site="s")),
            "relay.key_file and sites.url are both set",
        ),
        (
            lambda: Config(streams=StreamConfig(keyed_identity="on"), relay=RelayConfig(source="nats://a:4222")),
            "set relay.key_file instead",
        ),
        (lambda: Config(http=StreamConfig()), "http must be HttpConfig, got StreamConfig"),  # type: ignore[arg-type]
        (lambda: Config(engines=(3,)), "engine must be Engine, a string or a table, got int"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            make()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read"),
        (b"", "must hold one key"),
        (b"a b", "must hold one key"),
        (b"\xff", "it is not text"),
        ("é".encode(), "must hold one key"),
    ],
)
def test_a_key_file_that_has_no_key(content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_bytes(content)
    settings = read_config({"http.key_file": str(path)}, {}).config
    with pytest.raises(ConfigError, match=message) as caught:
        settings.for_native()
    assert "http.key_file" in str(caught.value)
