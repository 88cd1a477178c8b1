"""The comparing and reporting of `make real-engines`, without engines."""

from __future__ import annotations

import dataclasses
import json
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest
from benchmarks.real_engines import model, report, tiers
from benchmarks.real_engines.compare import IN_FLIGHT, NOT_SURE, PARTIAL, UNEXPLAINED, UPPER_BOUND, Sample, tally
from benchmarks.real_engines.complaints import Row
from benchmarks.real_engines.engine import SOURCES
from benchmarks.real_engines.install import CannotInstall, Engine, Product, interpreter, pinned, release
from benchmarks.real_engines.launch import Offload, Ports, Setup, command, environment
from benchmarks.real_engines.run import Outcome

SURE = Sample("turns", "a", prompt=96, block_size=32, held=96, cached=64)


def test_the_last_token_is_always_computed() -> None:
    assert SURE.predicted == 64
    assert SURE.verdict == "equal"
    assert SURE.cause is None
    assert dataclasses.replace(SURE, prompt=97, cached=96).verdict == "equal"


def test_what_the_index_says_is_usable_is_the_prediction() -> None:
    """The usable tokens of a hybrid model may be fewer than any rule says."""
    hybrid = dataclasses.replace(SURE, usable=32)
    assert (hybrid.predicted, hybrid.verdict) == (32, "low")
    assert dataclasses.replace(hybrid, cached=32).verdict == "equal"
    assert "32 usable" in str(hybrid)
    assert dataclasses.replace(SURE, usable=0, held=None, trusted=False).cause == NOT_SURE


@pytest.mark.parametrize(
    ("changes", "verdict", "cause"),
    [
        ({"cached": 32}, "high", UNEXPLAINED),
        ({"cached": 64, "held": 32}, "low", UNEXPLAINED),
        ({"held": None}, "low", NOT_SURE),
        ({"cached": 32, "trusted": False}, "high", NOT_SURE),
        ({"cached": 32, "upper_bound": True}, "high", UPPER_BOUND),
        ({"held": 0, "upper_bound": True}, "low", UNEXPLAINED),
        ({"held": 0, "partial": True}, "low", PARTIAL),
        ({"cached": 0, "partial": True}, "high", UNEXPLAINED),
        ({"cached": 0, "unannounced": "salt"}, "high", "no salt in events"),
        ({"held": 0, "overlapping": 1}, "low", IN_FLIGHT),
    ],
)
def test_a_difference_has_a_cause_only_if_something_known_explains_it(
    changes: dict[str, object], verdict: str, cause: str
) -> None:
    sample = dataclasses.replace(SURE, **changes)  # type: ignore[arg-type]
    assert (sample.verdict, sample.cause) == (verdict, cause)
    assert cause in str(sample)


def test_samples_are_counted_by_scenario() -> None:
    wrong = dataclasses.replace(SURE, scenario="salts", cached=0)
    counted = tally([SURE, SURE, wrong])
    assert list(counted) == ["turns", "salts"]
    assert (counted["turns"].total, counted["turns"].wrong) == (2, 0)
    assert (counted["salts"].total, counted["salts"].wrong) == (1, 1)


def test_the_report_hides_nothing() -> None:
    low = dataclasses.replace(SURE, scenario="late", held=0, partial=True)
    outcomes = [
        Outcome("vLLM 0.11.0", "URL and ports", [SURE, low], noted=["something took 1 s"]),
        Outcome(
            "vLLM 0.32.0", "URL alone", [SURE, dataclasses.replace(SURE, cached=0)], failed=["hybrid: did not start"]
        ),
    ]
    page = report.page(outcomes)
    for line in (
        "| vLLM 0.11.0 | URL and ports | 2 | 1 | 1 | 0 | 0 |",
        "| vLLM 0.32.0 | URL alone | 2 | 1 | 0 | 1 | 1 |",
        "| turns | 1/1 | 1/2 |",
        "| late | 0/1 |  |",
        "| late | low | partial | vLLM 0.11.0: 1 |",
        "| turns | high | unexplained | vLLM 0.32.0: 1 |",
        "- vLLM 0.11.0: something took 1 s.",
        "- vLLM 0.32.0: hybrid: did not start.",
    ):
        assert line in page


def test_the_report_says_what_happened_where_it_was_not_right() -> None:
    rows = [Row("own pages among the requests", "0", "0"), Row("an unknown name", "404", "200")]
    page = report.page([Outcome("vLLM 0.32.0", "URL alone", [SURE], complaints=rows)])
    assert "| vLLM 0.32.0 | own pages among the requests | 0 | the same |" in page
    assert "| vLLM 0.32.0 | an unknown name | 404 | **200** |" in page


def test_a_page_keeps_what_is_around_its_results(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(f"before {report.BEGIN} old {report.END} after", encoding="utf-8")
    report.fill(path, "new\n")
    report.fill(path, "newer\n")
    assert path.read_text(encoding="utf-8") == f"before {report.BEGIN}\n\nnewer\n\n{report.END} after"
    path.write_text("nothing", encoding="utf-8")
    with pytest.raises(ValueError, match="no place"):
        report.fill(path, "new")


def test_an_adapter_is_a_valid_safetensors_file(tmp_path: Path) -> None:
    raw = (model.write_adapter(tmp_path, seed=1) / "adapter_model.safetensors").read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    head = json.loads(raw[8 : 8 + length])
    tensors = {name: each for name, each in head.items() if name != "__metadata__"}
    assert len(tensors) == 8
    assert max(each["data_offsets"][1] for each in tensors.values()) == len(raw) - 8 - length


def test_the_tokenizer_has_a_token_for_each_byte(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(model.write(tmp_path, model.HYBRID) / "tokenizer.json"))
    text = "tiny \n naïve €"
    encoded = tokenizer.encode(text)
    assert len(encoded.ids) == len(text.encode())
    assert tokenizer.decode(encoded.ids) == text
    assert tokenizer.get_vocab_size() == model.VOCABULARY


def test_versions_have_releases() -> None:
    assert release("0.11.0.post2") == (0, 11)


@pytest.mark.parametrize(("product", "version"), [("vLLM", "0.33.0"), ("SGLang", "0.5.23")])
def test_the_newest_engines_are_installed_from_versions_that_go_together(product: Product, version: str) -> None:
    """Engines ask for packages without upper bounds, so they could not be installed after a release of one."""
    pins = pinned(product, version)
    assert pins is not None
    versions = dict(pin.split("==") for pin in pins)
    assert len(versions) == len(pins) > 100
    assert {"torch", "transformers", "fastapi", "pyzmq"} <= {name.lower() for name in versions}
    if "torchvision" in versions:  # releases of both go together: 2.13 and 0.28, 2.14 and 0.29
        torch, vision = (int(versions[name].split(".")[1]) for name in ("torch", "torchvision"))
        assert vision == torch + 15
    assert pinned(product, "0.0.1") is None


def test_a_python_that_only_prints_an_error_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version manager puts scripts on the PATH for versions that are not chosen."""
    broken, works = tmp_path / "broken", tmp_path / "works"
    for folder, script in ((broken, "echo 'python3.12: command not found' >&2; exit 127"), (works, "exit 0")):
        folder.mkdir()
        (folder / "python3.12").write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        (folder / "python3.12").chmod(0o755)
    monkeypatch.setattr("benchmarks.real_engines.install.sys.version_info", SimpleNamespace(major=3, minor=9))
    monkeypatch.setenv("PATH", f"{broken}:{works}")
    assert interpreter() == str(works / "python3.12")
    monkeypatch.setenv("PATH", str(broken))
    with pytest.raises(CannotInstall, match="found, but not running"):
        interpreter()


SEGMENTS = [
    {"from": 0, "to": 64, "tier": "gpu", "certain": True},
    {"from": 64, "to": 96, "tier": "cpu", "certain": True},
    {"from": 96, "to": 192, "tier": "external", "certain": True},
]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        (193, {"device": 64, "host": 32, "disk": 96}),
        (192, {"device": 64, "host": 32, "disk": 64}),  # the last token is computed
        (96, {"device": 64, "host": 0, "disk": 0}),
        (64, {"device": 32, "host": 0, "disk": 0}),
    ],
)
def test_each_tier_is_expected_to_give_its_part_of_what_can_be_reused(prompt: int, expected: dict[str, int]) -> None:
    assert tiers.parts({"gpu": 64, "loadable": SEGMENTS}, prompt, block=32) == expected


def test_an_engine_that_has_offloaded_nothing_gives_what_its_device_has() -> None:
    assert tiers.parts({"gpu": 96}, 97, block=32)["device"] == 96
    assert tiers.parts({}, 97, block=32).total() == 0


def test_the_sources_of_cached_tokens_are_read_from_vllms_metrics() -> None:
    text = (
        "# HELP vllm:prompt_tokens_cached_by_source_total Tokens\n"
        'vllm:prompt_tokens_cached_by_source_total{engine="0",model_name="tiny",source="device"} 1024.0\n'
        'vllm:prompt_tokens_cached_by_source_total{engine="0",model_name="tiny",source="p2p"} 64.0\n'
        'vllm:prompt_tokens_by_source_total{engine="0",source="local_compute"} 7.0\n'
    )
    assert SOURCES.findall(text) == [("device", "1024.0"), ("p2p", "64.0")]


def test_an_engine_is_told_of_its_tiers(tmp_path: Path) -> None:
    offload = Offload(room=1 << 20, chunk=2, folder=tmp_path, pulls=True, seed="1", handshake=3)
    setup = Setup(tmp_path, tmp_path / "loopback.so", offload=offload)
    engine = Engine("vLLM", "0.33.0", tmp_path / "bin" / "python")
    arguments = command(engine, setup, Ports(http=1, events=2, replay=3, pulls=4))
    told = json.loads(arguments[arguments.index("--kv-transfer-config") + 1])
    assert told["kv_connector"] == "OffloadingConnector"
    more = told["kv_connector_extra_config"]
    assert [tier["type"] for tier in more["secondary_tiers"]] == ["p2p", "fs"]
    assert more["secondary_tiers"][0]["port"] == 4
    assert more["blocks_per_chunk"] == 2
    variables = environment(engine, setup)
    assert (variables["PYTHONHASHSEED"], variables["VLLM_P2P_HANDSHAKE_TIMEOUT_S"]) == ("1", "3")
    plain = Setup(tmp_path, tmp_path / "loopback.so")
    assert "--kv-transfer-config" not in command(engine, plain, Ports(http=1, events=2, replay=3, pulls=4))
    assert "PYTHONHASHSEED" not in environment(engine, plain)
