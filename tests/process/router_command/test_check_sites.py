"""`kvatlas router --check` with a service above sites: what does not agree is named with what to change."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from kvatlas import BlockIndex
from kvatlas.cli.router import router as command
from kvatlas.router import RouterConfig, RouterSection
from kvatlas.router.check import EngineReport, check
from kvatlas.service import Config, DiscoveryConfig, Engine, HttpConfig, Service, SitesConfig
from kvatlas.sim.server import Fleet
from kvatlas.sites import SitePublisher

pytest.importorskip("tokenizers")


@pytest.fixture
def top() -> Iterator[Service]:
    http = HttpConfig(bind="127.0.0.1:0", key="small", admin_key="large")
    with Service(config=Config(http=http, sites=SitesConfig(role="global", grain=2))) as service:
        yield service


def publish(top: Service, site: str, model: str, block: int = 16) -> None:
    publisher = SitePublisher(site, grain=2)
    publisher.look(BlockIndex(block_size=block))
    about: dict[str, str | int] = {"model_name": model, "block_size": block}
    headers = {"content-type": "application/octet-stream", "authorization": "Bearer large"}
    assert httpx.post(
        f"{top.url}/digest", params=about, content=publisher.whole(), headers=headers, timeout=60
    ).is_success


def model_of(fleet: Fleet) -> str:
    name: str = httpx.get(f"{fleet.urls[0]}/v1/models", timeout=60).json()["data"][0]["id"]
    return name


def checked(fleet: Fleet, tokenizer: Path, **router: Any) -> list[EngineReport]:
    names = ("north", "south")
    config = RouterConfig(
        engines=tuple(Engine.of(f"{name}={url}") for name, url in zip(names, fleet.urls, strict=True)),
        router=RouterSection(tokenizer=str(tokenizer), **router),
        discovery=DiscoveryConfig(request_timeout=60),
    )
    return check(config)


def said(report: EngineReport) -> dict[str, tuple[str, str]]:
    return {finding.what: (finding.level, f"{finding.words} -> {finding.change}") for finding in report.findings}


def test_all_is_well(fleet: Fleet, tokenizer: Path, top: Service, tmp_path: Path) -> None:
    for site in ("north", "south"):
        publish(top, site, model_of(fleet))
    north, south, above = checked(fleet, tokenizer, global_url=top.url, global_key="large", global_timeout=30)
    assert not north.problems
    assert not south.problems
    levels = {what: level for what, (level, _) in said(above).items()}
    assert levels == dict.fromkeys(("reachable", "names", "models", "reports", "answers"), "ok")
    (tmp_path / "key").write_text("large")
    engines = [
        arg for name, url in zip(("north", "south"), fleet.urls, strict=True) for arg in ("--engine", f"{name}={url}")
    ]
    flags = ["--global", top.url, "--global-key-file", str(tmp_path / "key"), "--tokenizer", str(tokenizer)]
    done = CliRunner().invoke(command, ["--check", *engines, *flags], terminal_width=200)
    assert done.exit_code == 0, done.output
    assert "No problems with 2 engines and the service above them." in " ".join(done.output.split())


def test_what_does_not_agree_is_named(fleet: Fleet, tokenizer: Path, top: Service) -> None:
    publish(top, "north", model_of(fleet), block=32)
    publish(top, "west", model_of(fleet), block=32)
    *_, above = checked(fleet, tokenizer, global_url=top.url, global_key="small")
    found = said(above)
    words = " ".join(finding.words for finding in above.findings if finding.what == "names")
    assert "no engine has the name of west" in words
    assert "no site has the name of south" in words
    assert found["block size"] == (
        "problem",
        "the sites have blocks of 32 tokens, this router 16: nothing would ever be found -> set --block-size 32",
    )
    assert found["reports"][0] == "problem"
    assert "give its admin key" in found["reports"][1]


def test_models_that_no_site_has(fleet: Fleet, tokenizer: Path, top: Service) -> None:
    publish(top, "north", "another")
    publish(top, "south", "another")
    *_, above = checked(fleet, tokenizer, global_url=top.url, global_key="large")
    assert f"no site has sent a digest of {model_of(fleet)}" in said(above)["models"][1]


def test_services_that_cannot_be_asked(fleet: Fleet, tokenizer: Path, top: Service) -> None:
    *_, above = checked(fleet, tokenizer, global_url=top.url)
    assert "give its admin key" in said(above)["reachable"][1]
    *_, above = checked(fleet, tokenizer, global_url="http://127.0.0.1:9")
    assert "kvatlas serve --role global" in said(above)["reachable"][1]
    with Service(config=Config(http=HttpConfig(bind="127.0.0.1:0"))) as site:
        *_, above = checked(fleet, tokenizer, global_url=site.url)
    assert "with --role global" in said(above)["reachable"][1]
