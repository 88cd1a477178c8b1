"""LiteLLM's real proxy: with the picker inside, and before a router as its one deployment."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.waiting import until

import kvatlas
from kvatlas import Service
from kvatlas.router import Router, RouterConfig, RouterHttpConfig, RouterSection
from kvatlas.sim.server import Fleet
from kvatlas.sim.server.ports import free_block

KEY = "sk-kvatlas-0123456789abcdef0123456789abcdef"
# The module that the proxy imports: it writes the picker's counts down again and again.
_PICKING = """
import json
import threading
import time
from pathlib import Path

from kvatlas.litellm import Picker

# made here


def write():
    new = COUNTS.with_suffix(".new")
    while True:
        time.sleep(0.05)
        new.write_text(json.dumps(picker.counts()))
        new.replace(COUNTS)


threading.Thread(target=write, daemon=True).start()
"""
TEXTS = [f"{number} " + "It was a bright cold day in April. " * 20 for number in range(4)]

pytestmark = pytest.mark.slow


def litellm() -> str:
    program = os.environ.get("LITELLM") or shutil.which("litellm")
    if program is None:
        pytest.skip("no litellm on the path, and LITELLM names none: pip install 'litellm[proxy]==1.108.7'")
    return program


@contextmanager
def proxy(folder: Path, groups: dict[str, Sequence[str]], picker: str) -> Iterator[Proxy]:
    """A proxy with a deployment for each URL of each model; `picker` is what makes the picker, in Python."""
    program, port = litellm(), free_block("127.0.0.1")
    models = [
        {
            "model_name": group,
            "litellm_params": {"model": "hosted_vllm/sim-model", "api_base": f"{url}/v1", "api_key": "none"},
            "model_info": {"id": f"{group}-{number}"},
        }
        for group, urls in groups.items()
        for number, url in enumerate(urls)
    ]
    written = f"COUNTS = Path({str(folder)!r}, 'counts')\n\npicker = {picker}\n"
    (folder / "picking.py").write_text(_PICKING.replace("# made here\n", written), encoding="utf-8")
    config = {
        "model_list": models,
        "general_settings": {"master_key": KEY},
        "router_settings": {"num_retries": 2, "allowed_fails": 100},
        "litellm_settings": {"telemetry": False, "callbacks": ["picking.picker"]},
    }
    (folder / "config.yaml").write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
    package = str(Path(kvatlas.__file__).parents[1])
    variables = {**os.environ, "PYTHONPATH": package, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    command = [program, "--config", str(folder / "config.yaml"), "--host", "127.0.0.1", "--port", str(port)]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log, env=variables) as process,
    ):
        try:
            made = Proxy(f"http://127.0.0.1:{port}", folder)
            with contextlib.suppress(AssertionError):  # it takes long on a busy machine
                until(lambda: process.poll() is not None or made.is_up())
            until(lambda: process.poll() is not None or made.is_up(), "up")
            assert process.poll() is None, (folder / "log").read_text(encoding="utf-8")[-3_000:]
            yield made
        finally:
            process.kill()


class Proxy:
    """A running proxy, and a client of it."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder

    def is_up(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health/liveliness", timeout=60).status_code == 200
        except httpx.HTTPError:
            return False

    def ask(self, path: str = "/v1/chat/completions", **body: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {KEY}"}
        answer = httpx.post(
            f"{self.url}{path}", json={"model": "m", "max_tokens": 4} | body, headers=headers, timeout=60
        )
        assert answer.status_code == 200, answer.text
        return answer

    def chat(self, text: str, **body: Any) -> httpx.Response:
        return self.ask(messages=[{"role": "user", "content": text}], **body)

    def counts(self) -> dict[str, int]:
        """The counts of the picker, which it writes again and again."""
        try:
            found: dict[str, int] = json.loads((self.folder / "counts").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        return found


def where(answer: httpx.Response) -> str:
    return answer.headers["x-litellm-model-id"]


def cached(answer: httpx.Response) -> int:
    usage = answer.json()["usage"]
    details = usage.get("prompt_tokens_details") or {}
    return int(details.get("cached_tokens") or usage.get("cache_read_input_tokens") or 0)


def picker_of(url: str, tokenizer: Path | None = None) -> str:
    tokenizers = {} if tokenizer is None else {"sim-model": str(tokenizer)}
    return f"Picker({url!r}, tokenizers={tokenizers!r}, timeout=20)"


def test_a_picker_that_asks_a_service(fleet: Fleet, service: Service, tokenizer: Path, tmp_path: Path) -> None:
    """One proxy for all of it: it takes long to start."""
    with proxy(tmp_path, {"m": fleet.urls}, picker_of(service.url, tokenizer)) as made:
        turns_come_back_to_the_engine_that_has_their_beginning(fleet, made)
        a_retry_goes_elsewhere(fleet, made)
        service.close()
        requests_go_on_without_the_index(made)


def turns_come_back_to_the_engine_that_has_their_beginning(fleet: Fleet, made: Proxy) -> None:
    first = [made.chat(text) for text in TEXTS]
    assert {where(answer) for answer in first} == {"m-0", "m-1", "m-2"}
    for answer, text in zip(first, TEXTS, strict=True):
        again = made.chat(text)
        assert where(again) == where(answer)
        assert again.headers["x-kvatlas-worker"] == fleet.urls[int(where(answer)[-1])].removeprefix("http://")
        assert int(again.headers["x-kvatlas-cached-tokens"]) == cached(again) > 600
        streamed = made.chat(text, stream=True)
        assert where(streamed) == where(answer)
        assert "[DONE]" in streamed.text
    # A completion is another prompt than a chat.
    one = made.ask("/v1/completions", prompt=TEXTS[0])
    two = made.ask("/v1/completions", prompt=TEXTS[0])
    assert (where(one), cached(two) > 600) == (where(two), True)
    until(lambda: made.counts().get("core_finished") == 14, "finished")
    counts = made.counts()
    assert counts["picked"] == 14
    # The expectation was right to the token, of all whose answers said so.
    assert counts["core_expected_cached"] == counts["core_reported_cached"] > 8 * 600


def a_retry_goes_elsewhere(fleet: Fleet, made: Proxy) -> None:
    before = made.counts()
    home = where(made.chat(TEXTS[0]))
    engine = fleet[int(home[-1])]
    engine.faults(http_die_before=1.0)
    answers = [made.chat(TEXTS[0]) for _ in range(3)]
    assert home not in {where(answer) for answer in answers}
    until(lambda: made.counts()["core_finished"] == before["core_finished"] + 4, "all ended")
    counts = made.counts()
    assert counts["retries"] == counts["core_failed"] >= 1
    engine.faults(http_die_before=0.0)


def requests_go_on_without_the_index(made: Proxy) -> None:
    for text in TEXTS:
        assert "x-kvatlas-worker" not in made.chat(text).headers
    until(lambda: sum(n for name, n in made.counts().items() if name.startswith("left_")) == 4, "counted")


def test_a_router_that_is_asked_and_a_router_that_is_a_deployment(
    fleet: Fleet, tokenizer: Path, tmp_path: Path
) -> None:
    section = RouterSection(tokenizer=str(tokenizer))
    config = RouterConfig(http=RouterHttpConfig(bind="127.0.0.1:0"), router=section)
    with Router(engines=fleet.urls, config=config) as router:
        router.wait_ready()
        with proxy(tmp_path, {"m": fleet.urls, "r": [router.url]}, picker_of(router.url)) as made:
            a_router_is_asked_without_a_tokenizer_here(made)
            a_router_is_one_deployment(fleet, made)


def a_router_is_asked_without_a_tokenizer_here(made: Proxy) -> None:
    first = where(made.chat(TEXTS[0]))
    again = made.chat(TEXTS[0])
    assert (where(again), int(again.headers["x-kvatlas-cached-tokens"])) == (first, cached(again))
    assert cached(again) > 600
    until(lambda: made.counts().get("picked") == 2, "counted")


def a_router_is_one_deployment(fleet: Fleet, made: Proxy) -> None:
    for path, body in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": TEXTS[1]}]}),
        ("/v1/completions", {"prompt": TEXTS[2]}),
        ("/v1/messages", {"messages": [{"role": "user", "content": TEXTS[3]}]}),
    ):
        made.ask(path, model="r", **body)
        answer = made.ask(path, model="r", **body)
        assert cached(answer) > 600
        if path == "/v1/chat/completions":  # LiteLLM keeps what an engine says for itself of the others
            assert int(answer.headers["llm_provider-x-kvatlas-cached-tokens"]) == cached(answer)
    streamed = made.chat(TEXTS[1], model="r", stream=True, stream_options={"include_usage": True})
    usage = [line for line in streamed.text.splitlines() if '"usage"' in line][-1]
    assert json.loads(usage.removeprefix("data: "))["usage"]["prompt_tokens_details"]["cached_tokens"] > 600
    # The picker leaves it alone, and an engine that breaks off is the router's business.
    fleet[0].faults(http_die_before=1.0)
    for text in TEXTS:
        assert made.chat(text, model="r").headers["x-litellm-attempted-retries"] == "0"
    until(lambda: made.counts().get("left_not_followed") == 11, "counted")
    assert made.counts()["picked"] == 2
