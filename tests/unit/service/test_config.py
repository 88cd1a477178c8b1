"""The sources of the service's settings, and the order in which they count."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kvatlas.errors import ConfigError
from kvatlas.service import (
    Config,
    Engine,
    Stream,
    StreamConfig,
    read_config,
)
from kvatlas.service.config.kinds import Number, Switch, Texts
from kvatlas.service.config.schema import SECTIONS

from .samples import KEYS, OTHER, TOGETHER


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
                shown = kind.show(value) if isinstance(kind, Texts | Number | Switch) else json.dumps(text)
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
