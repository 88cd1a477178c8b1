"""The comparing and reporting of `make real-engines`, without engines."""

from __future__ import annotations

import dataclasses
import json
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest
from benchmarks.real_engines import model, report
from benchmarks.real_engines.compare import IN_FLIGHT, NOT_SURE, PARTIAL, UNEXPLAINED, UPPER_BOUND, Sample, tally
from benchmarks.real_engines.complaints import Row
from benchmarks.real_engines.install import CannotInstall, Product, interpreter, pinned, release
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
