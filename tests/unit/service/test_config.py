"""Config: where they come from, what is refused and in which words."""

import dataclasses
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kvatlas.errors import ConfigError
from kvatlas.service import (
    Config,
    DiscoveryConfig,
    Engine,
    HttpConfig,
    RelayConfig,
    SnapshotConfig,
    Stream,
    StreamConfig,
    read_config,
)
from kvatlas.service.config import show_config
from kvatlas.service.config.kinds import Number, Texts
from kvatlas.service.config.read import LISTS, SECRETS
from kvatlas.service.config.schema import SECTIONS, all_keys
from kvatlas.service.config.sharing import SitesConfig

ROOT = Path(__file__).parents[3]
# A value of each setting that is not its default.
OTHER = {
    "engines_file": "engines.toml",
    "model": "m",
    "block_size": "32",
    "routing_group": "blue",
    "drain_timeout": "1m",
    "drain_delay": "5s",
    "http.bind": "0.0.0.0:80",
    "http.admin_bind": "127.0.0.1:9090",
    "http.threads": "3",
    "http.key_file": "key",
    "http.admin_key_file": "admin-key",
    "http.hosts": "index.internal,atlas",
    "http.tls_cert": "cert.pem",
    "http.tls_key": "key.pem",
    "http.tls_client_ca": "ca.pem",
    "http.max_body": "1MiB",
    "http.body_memory": "128MiB",
    "http.max_head": "8 KiB",
    "http.max_headers": "50",
    "http.max_connections": "7",
    "http.request_timeout": "3s",
    "http.write_timeout": "3s",
    "http.idle_timeout": "4s",
    "http.access_log": "on",
    "http.untrusted": "flag",
    "streams.allow": "10.0.0.0/8,pod-*,ipc:///run/*",
    "streams.bind": "127.0.0.1:5557,[::1]:5557",
    "streams.threads": "3",
    "streams.stale_after": "1m",
    "streams.probe_interval": "1s",
    "streams.replay_timeout": "250ms",
    "streams.replay_total_timeout": "90s",
    "streams.replay_attempts": "9",
    "streams.reorder_grace": "0",
    "streams.reconnect_min": "20ms",
    "streams.reconnect_max": "2s",
    "streams.settle_timeout": "5s",
    "streams.buffer_batches": "10",
    "streams.buffer_bytes": "64kB",
    "streams.keyed_identity": "on",
    "limits.workers": "5",
    "limits.streams": "6",
    "limits.keyspaces": "7",
    "limits.blocks_per_rank": "1000",
    "limits.blocks_per_worker": "2000",
    "limits.buffer_bytes": "1MiB",
    "adopt.share": "0.5",
    "adopt.hash_seeds": "0,1337",
    "snapshot.dir": "snapshots",
    "snapshot.every": "10s",
    "snapshot.keep": "1m",
    "snapshot.peer": "http://other:8090",
    "snapshot.peer_key_file": "peer-key",
    "snapshot.peer_timeout": "5s",
    "snapshot.max_bytes": "1MiB",
    "relay.publish": "nats://nats:4222",
    "relay.source": "nats://nats:4222,tls://other:4222",
    "relay.credentials": "nats.creds",
    "relay.ca": "nats.pem",
    "relay.key_file": "relay-key",
    "relay.reader_key_file": "reader-key",
    "relay.insecure_readers": "on",
    "relay.stream": "other",
    "relay.max_age": "1m",
    "relay.max_bytes": "1MiB",
    "relay.storage": "memory",
    "relay.snapshots": "on",
    "relay.buffer_bytes": "2MiB",
    "relay.heartbeat": "1s",
    "relay.lost_after": "3s",
    "relay.forget_after": "1m",
    "sites.role": "global",
    "sites.url": "http://above:8090",
    "sites.site": "north",
    "sites.key_file": "global-key",
    "sites.every": "1s",
    "sites.grain": "64",
    "sites.unknown_after": "1m",
    "sites.forget_after": "1m",
    "discovery.interval": "3s",
    "discovery.timeout": "0s",
    "discovery.request_timeout": "1.5s",
    "discovery.events_port": "5557",
    "discovery.replay_port": "5558",
    "discovery.key_file": "engine-key",
    "log.format": "json",
    "log.level": "debug",
}
KEYS = {key.path: key for key in all_keys()}
# Those that only go together.
TLS = ("http.tls_cert", "http.tls_key")
TOGETHER = {
    "http.tls_cert": TLS,
    "http.tls_key": TLS,
    "http.tls_client_ca": TLS,
    "snapshot.peer_key_file": ("snapshot.peer",),
    "relay.snapshots": ("relay.source",),
    "sites.url": ("sites.site",),
    "sites.site": ("sites.url",),
    "sites.key_file": ("sites.url", "sites.site"),
}


def value_of(settings: Config, path: str) -> Any:
    section, _, name = path.rpartition(".")
    return getattr(getattr(settings, section) if section else settings, name)


def as_toml(values: dict[str, str]) -> str:
    lines = []
    for section in SECTIONS:
        if section:
            lines.append(f"[{section}]")
        for path, text in values.items():
            if path.rpartition(".")[0] == section:
                kind = KEYS[path].kind
                value: Any = kind.parse(text)
                shown = kind.show(value) if isinstance(kind, Texts | Number) else json.dumps(text)
                lines.append(f"{path.rpartition('.')[2]} = {text if text.isdecimal() else shown}")
    return "\n".join(lines) + "\n"


def test_the_samples_are_complete() -> None:
    assert OTHER.keys() == KEYS.keys()
    for path, text in OTHER.items():
        assert KEYS[path].kind.parse(text) != KEYS[path].default, path


@pytest.mark.parametrize("path", OTHER)
def test_each_setting_by_each_source(path: str, tmp_path: Path) -> None:
    key = KEYS[path]
    names = list(dict.fromkeys([path, *TOGETHER.get(path, ())]))
    wanted = key.kind.parse(OTHER[path])
    assert value_of(read_config({name: OTHER[name] for name in names}, {}).config, path) == wanted
    assert value_of(read_config({}, {KEYS[name].env: OTHER[name] for name in names}).config, path) == wanted
    file = tmp_path / "k.toml"
    file.write_text(as_toml({name: OTHER[name] for name in names}))
    loaded = read_config({}, {"KVATLAS_CONFIG": str(file)})
    from_file = value_of(loaded.config, path)
    # A file names other files from where it is.
    assert from_file == (tmp_path / wanted if isinstance(wanted, Path) else wanted)
    assert re.fullmatch(rf"{re.escape(str(file))}, line \d+", loaded.sources[path])
    assert key.env == "KVATLAS_" + key.flag[2:].upper().replace("-", "_")


def test_flags_come_before_the_environment_before_the_file_before_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "k.toml"
    file.write_text('[streams]\nstale_after = "1s"\nprobe_interval = "1s"\nreplay_timeout = "1s"\n')
    env = {"KVATLAS_STALE_AFTER": "2s", "KVATLAS_PROBE_INTERVAL": "2s"}
    streams = read_config({"streams.stale_after": "3s"}, env, file).config.streams
    assert (streams.stale_after, streams.probe_interval, streams.replay_timeout) == (3, 2, 1)
    assert streams.settle_timeout == StreamConfig().settle_timeout


def test_lists_of_a_higher_source_take_the_place_of_others(tmp_path: Path) -> None:
    file = tmp_path / "k.toml"
    file.write_text('model = "m"\nblock_size = 16\nengine = ["http://f:1", {url = "http://g:2", name = "g"}]\n')
    assert [e.worker for e in read_config({}, {}, file).config.engines] == ["f:1", "g"]
    env = {"KVATLAS_ENGINES": "http://e:1\n x=https://h/base/ ", "KVATLAS_STREAMS": "w=tcp://h:1,rank=2"}
    settings = read_config({}, env, file).config
    assert [(e.worker, e.url) for e in settings.engines] == [("e:1", "http://e:1"), ("x", "https://h/base")]
    assert settings.static_streams == (Stream("w", "tcp://h:1", rank=2),)
    assert read_config({"engine": ["http://a:1"]}, env, file).config.engines == (Engine("http://a:1"),)


def test_no_file_is_read_that_nobody_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kvatlas.toml").write_text("model = 'm'")
    assert read_config({}, {}).config == Config()


def test_a_flag_overrules_the_config_variable(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("model = 'a'")
    (tmp_path / "b.toml").write_text("model = 'b'")
    assert read_config({}, {"KVATLAS_CONFIG": str(tmp_path / "a.toml")}, tmp_path / "b.toml").config.model == "b"


ANY = {
    "KVATLAS_URL": "http://x",
    "KVATLAS_ROUTER_URL": "http://x",
    "KVATLAS_TRACES": "/x",
    "PATH": "/bin",
    "KVATLAS": "1",
    "KVATLASX": "2",
}
LINKS = {
    "KVATLAS_SERVICE_HOST": "10.0.0.1",
    "KVATLAS_SERVICE_PORT": "8090",
    "KVATLAS_SERVICE_PORT_HTTP": "8090",
    "KVATLAS_PORT": "tcp://10.0.0.1:8090",
    "KVATLAS_PORT_8090_TCP_ADDR": "10.0.0.1",
    "KVATLAS_EVENTS_SERVICE_HOST": "10.0.0.2",
    "KVATLAS_EVENTS_PORT": "tcp://10.0.0.2:1",
}


def test_variables_of_others_are_left_alone() -> None:
    """Kubernetes adds those of LINKS where a Service is called kvatlas."""
    assert read_config({}, ANY | LINKS).config == Config()
    assert read_config({}, LINKS | {"KVATLAS_EVENTS_PORT": "5557"}).config.discovery.events_port == 5557


REFUSED_ENV = [
    ({"KVATLAS_STALE_AFTR": "1"}, "unknown environment variable KVATLAS_STALE_AFTR: did you mean KVATLAS_STALE_AFTER?"),
    ({"KVATLAS_ENGINE": "http://a"}, "unknown environment variable KVATLAS_ENGINE: did you mean KVATLAS_ENGINES?"),
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


def test_engines_and_streams_as_flags() -> None:
    engine = Engine.parse("a=http://user:secret@h:8000/")
    assert (engine.worker, engine.url, engine.show()) == ("a", "http://user:secret@h:8000", "a=http://***@h:8000")
    assert Engine.parse("http://[::1]:8000").worker == "[::1]:8000"
    assert Engine.parse("http://h").worker == "h"
    stream = Stream.parse(
        "w=tcp://h:1,replay-endpoint=tcp://h:2,rank=3,topic=kv,model=a=b,block-size=8,routing_group=g,count_copies=False"
    )
    assert stream == Stream("w", "tcp://h:1", "tcp://h:2", 3, "kv", "a=b", 8, "g", False)
    assert stream.show().endswith(",count_copies=false")
    named = Stream.parse("w=tcp://h:1,aliases=a|b c,adapters=sql")
    assert (named.aliases, named.adapters) == (("a", "b c"), ("sql",))
    assert Stream.parse(named.show()) == named
    for wrong in ("aliases=", "aliases=a||b", "adapters=|"):
        with pytest.raises(ConfigError, match=f"{wrong.partition('=')[0]} must be a list of strings"):
            Stream.parse(f"w=tcp://h:1,{wrong}")
    assert Stream.parse(stream.show()) == stream


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
        (lambda: RelayConfig(source="nats://a:4222, http://b"), "relay.source must be nats://HOST:PORT"),
        (lambda: RelayConfig(publish="nats://a:4222", snapshots="on"), "relay.snapshots is for readers"),
        (lambda: RelayConfig(source="nats://a:4222,tcp://b:5557"), "has servers of NATS and relays without it"),
        (lambda: RelayConfig(publish="tcp://0.0.0.0:1,tcp://0.0.0.0:2"), "must be one address to listen at"),
        (lambda: RelayConfig(source="tcp://b:5557", snapshots="on"), "relay.snapshots needs NATS"),
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


# Keys


def test_keys_come_from_files_or_variables(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("s3cret\n")
    assert read_config({}, {"KVATLAS_KEY": " abc "}).config.http.bearer() == "abc"
    assert read_config({"http.key_file": str(tmp_path / "key")}, {}).config.http.bearer() == "s3cret"
    # A flag comes before the variable, the variable before the file of settings.
    assert (
        read_config({"http.key_file": str(tmp_path / "key")}, {"KVATLAS_KEY": "abc"}).config.http.bearer() == "s3cret"
    )
    (tmp_path / "k.toml").write_text('[http]\nkey_file = "key"\n[discovery]\nkey_file = "key"')
    loaded = read_config({}, {"KVATLAS_KEY": "abc"}, tmp_path / "k.toml")
    assert loaded.config.http.bearer() == "abc"
    assert loaded.config.discovery.bearer() == "s3cret"
    assert read_config({}, {"KVATLAS_ENGINE_KEY": "e"}).config.discovery.bearer() == "e"
    relay = {"relay.source": "nats://a:4222"}
    assert read_config(relay, {"KVATLAS_RELAY_KEY": "ab" * 32}).config.for_native()["relay"]["key"] == "ab" * 32
    with pytest.raises(ConfigError, match="KVATLAS_RELAY_KEY and KVATLAS_RELAY_KEY_FILE are both set"):
        read_config(relay, {"KVATLAS_RELAY_KEY": "ab" * 32, "KVATLAS_RELAY_KEY_FILE": "k"})


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


def test_keys_are_not_shown(tmp_path: Path) -> None:
    keys = {"KVATLAS_KEY": "s3cret", "KVATLAS_ADMIN_KEY": "adm1n", "KVATLAS_ENGINE_KEY": "3ngine"}
    loaded = read_config({}, keys | {"KVATLAS_RELAY_KEY": "r3lay"})
    for text in (show_config(loaded), repr(loaded), str(loaded.config)):
        assert "s3cret" not in text
        assert "3ngine" not in text
        assert "adm1n" not in text
        assert "r3lay" not in text
    assert "# key is hidden  # KVATLAS_KEY" in show_config(loaded)
    with pytest.raises(ConfigError) as caught:
        read_config({}, {"KVATLAS_KEY": "s3cret s3cret"})
    assert "s3cret" not in str(caught.value)


# What is printed, what the native service is told


def test_the_settings_in_force_can_be_read_again(tmp_path: Path) -> None:
    stream, engine = "w=tcp://h:1,topic=a,rank=2", 'q"\\=http://h:8000'
    # These go with no keyed_identity, or not together.
    relay = ("relay.publish", "relay.source", "relay.credentials", "relay.ca", "relay.snapshots")
    left_out = ("_file", ".dir", "snapshot.peer", "sites.url", "sites.site", *relay)
    flags: dict[str, Any] = {path: text for path, text in OTHER.items() if not path.endswith(left_out)}
    loaded = read_config(flags | {"engine": [engine], "stream": [stream]}, {"KVATLAS_KEY": "k"})
    text = show_config(loaded)
    assert 'stale_after = "60s"  # --stale-after' in text
    (tmp_path / "again.toml").write_text(text)
    again = read_config({}, {"KVATLAS_KEY": "k"}, tmp_path / "again.toml")

    def plain(settings: Config) -> Config:
        http = dataclasses.replace(settings.http, tls_cert=None, tls_key=None, tls_client_ca=None)
        return dataclasses.replace(settings, http=http)

    assert plain(again.config) == plain(loaded.config)
    assert show_config(read_config({}, {})).count("#") >= 6
    assert tomllib.loads(show_config(read_config({}, {})))["http"]["bind"] == "127.0.0.1:8090"


def test_what_the_native_service_is_told(tmp_path: Path) -> None:
    told = read_config(
        {
            path: text
            for path, text in OTHER.items()
            if not path.endswith(("key_file", "keyed_identity", "relay.source", "relay.snapshots", "sites.role"))
        },
        {},
    ).config.for_native()
    assert told["http"]["tls"] == {"cert": "cert.pem", "key": "key.pem", "client_ca": "ca.pem"}
    assert told["http"]["max_body"] == 1 << 20
    assert told["streams"]["replay_timeout"] == 0.25
    assert json.loads(json.dumps(told)) == told
    default = Config().for_native(holds=("discovery",))
    assert default["holds"] == ["discovery"]
    assert default["http"]["tls"] is None
    # Every setting of these sections is passed on.
    streams = {key.path[8:] for key in KEYS.values() if key.path.startswith("streams.")}
    assert default["streams"].keys() == streams | {"limits"}
    limits = {key.path[7:] for key in KEYS.values() if key.path.startswith("limits.")}
    assert default["streams"]["limits"].keys() == limits
    own = {key.path[5:] for key in KEYS.values() if key.path.startswith("http.") and ".tls_" not in key.path}
    assert default["http"].keys() == own | {"key", "admin_key", "tls"}


def test_the_documentation_has_every_setting() -> None:
    from tools.docs import configuration  # noqa: PLC0415 - only this test needs it

    text = (ROOT / "docs/reference/configuration.md").read_text() + configuration.page()
    rows: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("| `") and line.count(" | ") == 4:
            cells = line[2:-2].split(" | ")
            rows[cells[0].strip("`")] = cells
    for key in KEYS.values():
        cells = [cell.strip("` ") for cell in rows[key.path]]
        assert cells[1:3] == [key.flag, key.env], key.path
        assert cells[3] == (key.show_default().strip('"') or "none"), key.path
    for name, (flag, variable, kind) in LISTS.items():
        assert [cell.strip("` ") for cell in rows[f"[[{name}]]"]][1:3] == [flag, variable]
        for field in dataclasses.fields(Engine if kind is Engine else Stream):
            assert f"`{field.name}`" in text, field.name
    for variable, _file in SECRETS.values():
        assert f"`{variable}`" in text
    known = KEYS.keys() | {f"[[{name}]]" for name in LISTS}
    assert rows.keys() == known


def test_no_setting_is_called_like_what_kubernetes_adds() -> None:
    assert not any(key.env.endswith(("SERVICE_HOST", "SERVICE_PORT")) for key in KEYS.values())
    assert DiscoveryConfig().interval == 10
