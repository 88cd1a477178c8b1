"""A router above sites: it asks the service above them, and tells it what the sites' engines had cached."""

from __future__ import annotations

import json
import random
import shutil
import ssl
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.engine import MODEL, Behaviour, Engine, Talk, whole

from kvatlas import BlockIndex
from kvatlas.client import Client
from kvatlas.service import Config, HttpConfig, Service, SitesConfig
from kvatlas.sim.server.ports import free_block
from kvatlas.sites import SitePublisher

from .deciding import BLOCK, prompt, tokens_of
from .running import DEADLINE, Answer, Router, wait_until
from .test_waiting import ThreadedRequest, busy

GRAIN = 2
LENGTH = 200  # tokens of a prompt: twelve blocks and a bit
HELD = 10  # blocks of it that a site says it has
SURE = HELD * BLOCK


def text_of(number: int) -> str:
    return "".join(random.Random(number).choices("abcdefgh", k=LENGTH))


def says(cached: int) -> Behaviour:
    """An engine with a number of cached tokens of any prompt."""

    async def act(talk: Talk) -> None:
        await whole(prompt=LENGTH, cached=cached)(talk)

    return act


def above(port: int = 0, unknown_after: float = 3600.0, **http: Any) -> Service:
    sites = SitesConfig(role="global", grain=GRAIN, unknown_after=unknown_after)
    return Service(config=Config(http=HttpConfig(bind=f"127.0.0.1:{port}", **http), sites=sites))


def publish(
    top: Service,
    site: str,
    texts: Sequence[str],
    *,
    block: int = BLOCK,
    key: str | None = None,
    verify: ssl.SSLContext | bool = True,
) -> None:
    """A site's first digest, by which it holds `HELD` blocks of each of these prompts."""
    index = BlockIndex(block_size=block)
    for number, text in enumerate(texts):
        names = [100 * number + at for at in range(1, HELD + 1)]
        index.store("w", block_hashes=names, tokens=tokens_of(text)[: HELD * block])
    publisher = SitePublisher(site, grain=GRAIN)
    publisher.look(index)
    about: dict[str, str | int] = {"model_name": MODEL, "block_size": block}
    headers = {"content-type": "application/octet-stream"} | ({"authorization": f"Bearer {key}"} if key else {})
    sent = httpx.post(
        f"{top.url}/digest", params=about, content=publisher.whole(), headers=headers, timeout=DEADLINE, verify=verify
    )
    assert sent.is_success, sent.text


@pytest.fixture
def top() -> Iterator[Service]:
    with above() as service:
        yield service


def flags(url: str, tokenizer: Path) -> tuple[str, ...]:
    shared = ("--policy", "kvatlas", "--tokenizer", str(tokenizer), "--block-size", str(BLOCK))
    return (*shared, "--global", url, "--global-timeout", "30s")


def ask(router: Router, text: str) -> Answer:
    answer = router.ask(prompt(text))
    assert answer.status == 200, answer
    return answer


def claimed(answer: Answer) -> int | None:
    bound = answer.headers.get("x-kvatlas-at-least")
    return None if bound is None else int(bound)


def reports(router: Router, result: str) -> float:
    return router.metric("kvatlas_router_global_reports_total", result=result)


def questions(router: Router, result: str) -> float:
    return router.metric("kvatlas_router_global_questions_total", result=result)


def state(client: Client, site: str) -> str:
    return next(status.state for status in client.site_statuses() if status.site == site)


def test_a_request_goes_where_the_site_surely_has_most(
    engine: Engine, other: Engine, top: Service, tokenizer: Path
) -> None:
    engine.behaviour = other.behaviour = says(SURE)
    publish(top, "e0", [text_of(0)])
    publish(top, "e1", [text_of(1)])
    with Router(engine, other, flags=flags(top.url, tokenizer)) as router:
        for number in (0, 1, 0, 1):
            answer = ask(router, text_of(number))
            assert answer.headers["x-kvatlas-worker"] == f"e{number}"
            assert (claimed(answer), answer.headers["x-kvatlas-at-most"]) == (SURE, str(SURE + BLOCK))
        wait_until(lambda: reports(router, "compared") == 4, "the service above knows what engines had")
        assert questions(router, "answered") == 4
        explained = router.ask(prompt(text_of(0)), path="/explain").json["bounds"]
        assert explained == [
            {"site": "e0", "at_least": SURE, "at_most": SURE + BLOCK, "probe": False},
            {"site": "e1", "at_least": 0, "at_most": BLOCK, "probe": False},
        ]
        last = json.loads(router.get("/decisions?limit=1")[1])[0]
        assert last["bounds"] == {"at_least": SURE, "at_most": SURE + BLOCK}
        # No site has it: nothing was claimed, and there is nothing to compare.
        assert claimed(ask(router, text_of(2))) == 0
        wait_until(lambda: reports(router, "nothing_claimed") == 1, "it is counted")
    assert {status.site: (status.compared, status.short) for status in top.client().site_statuses()} == {
        "e0": (2, 0),
        "e1": (2, 0),
    }


def test_a_site_that_lies_is_asked_about_ten_times_and_then_tried_now_and_then(
    engine: Engine, other: Engine, top: Service, tokenizer: Path
) -> None:
    engine.behaviour = other.behaviour = says(0)
    texts = [text_of(number) for number in range(100)]
    publish(top, "e1", texts)
    client = top.client()
    with Router(engine, other, flags=flags(top.url, tokenizer)) as router:
        in_vain = 0
        while state(client, "e1") == "known":
            answer = ask(router, texts[in_vain])
            assert (answer.headers["x-kvatlas-worker"], claimed(answer)) == ("e1", SURE)
            in_vain += 1
            assert in_vain <= 10
            wait_until(lambda n=in_vain: reports(router, "compared") == n, "the report has come")  # type: ignore[misc]
        assert in_vain >= 2
        # Now it is doubted: it may have anything, and gets requests by its load only. One in 32 tries it.
        later = [claimed(ask(router, text)) for text in texts[in_vain : in_vain + 64]]
        assert later.count(SURE) == 2
        wait_until(lambda: reports(router, "compared") == in_vain + 2, "what it had when it was tried is known")


def test_a_site_that_is_cut_off_may_have_anything_and_is_used(engine: Engine, other: Engine, tokenizer: Path) -> None:
    with above(unknown_after=0.2) as top:
        publish(top, "e0", [text_of(0)])
        wait_until(lambda: state(top.client(), "e0") == "unknown", "it was not heard for long")
        with Router(engine, other, flags=flags(top.url, tokenizer)) as router:
            bounds = router.ask(prompt(text_of(0)), path="/explain").json["bounds"]
            assert [(one["site"], one["at_least"]) for one in bounds] == [("e0", None), ("e1", 0)]
            workers = {ask(router, text_of(number)).headers["x-kvatlas-worker"] for number in range(12)}
            assert workers == {"e0", "e1"}


def test_the_service_above_is_away_and_comes_again(engine: Engine, other: Engine, tokenizer: Path) -> None:
    engine.behaviour = other.behaviour = says(SURE)
    port = free_block("127.0.0.1")
    top = above(port)
    with Router(engine, other, flags=flags(top.url, tokenizer)) as router:
        # Without a digest, no site has blocks of the model.
        assert claimed(ask(router, text_of(0))) == 0
        assert questions(router, "unknown_keyspace") == 1
        publish(top, "e1", [text_of(1)])
        assert claimed(ask(router, text_of(1))) == SURE
        top.close()
        answers = [ask(router, text_of(number)) for number in range(2, 8)]
        assert {claimed(answer) for answer in answers} == {None}
        assert questions(router, "unanswered") >= 1
        assert questions(router, "unanswered") + questions(router, "not_asked") == 6
        with above(port) as top:
            publish(top, "e1", [text_of(1)])
            wait_until(lambda: claimed(ask(router, text_of(1))) == SURE, "it is asked again")
            wait_until(lambda: "does not answer" in router.log and "answers again" in router.log, "it says so")


def test_blocks_of_another_size_are_nobodys(engine: Engine, other: Engine, top: Service, tokenizer: Path) -> None:
    publish(top, "e0", [text_of(0)], block=8)
    with Router(engine, other, flags=flags(top.url, tokenizer)) as router:
        assert claimed(ask(router, text_of(0))) is None
        assert questions(router, "other_block_size") == 1
        wait_until(lambda: "set --block-size 8" in router.log, "it says so")


def test_without_the_admin_key_claims_are_not_compared(
    engine: Engine, other: Engine, tokenizer: Path, tmp_path: Path
) -> None:
    engine.behaviour = other.behaviour = says(0)
    (tmp_path / "key").write_text("small")
    with above(key="small", admin_key="large") as top:
        publish(top, "e0", [text_of(0)], key="large")
        keys = ("--global-key-file", str(tmp_path / "key"))
        with Router(engine, other, flags=(*flags(top.url, tokenizer), *keys)) as router:
            assert claimed(ask(router, text_of(0))) == SURE
            wait_until(lambda: reports(router, "refused") == 1, "it was refused")
            wait_until(lambda: "it needs the admin key" in router.log, "it says so")


def test_over_tls(engine: Engine, other: Engine, tokenizer: Path, tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed, which makes the certificate for this test")
    engine.behaviour = other.behaviour = says(SURE)
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    options = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    names = [
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-addext",
        "basicConstraints=critical,CA:FALSE",
        "-keyout",
        str(key),
        "-out",
        str(cert),
    ]
    subprocess.run([openssl, *options.split(), *names], check=True, capture_output=True)
    with above(tls_cert=cert, tls_key=key) as top:
        assert top.url.startswith("https://")
        publish(top, "e1", [text_of(0)], verify=ssl.create_default_context(cafile=str(cert)))
        trusting = (*flags(top.url, tokenizer), "--upstream-ca", str(cert))
        with Router(engine, other, flags=trusting) as router:
            assert claimed(ask(router, text_of(0))) == SURE
            wait_until(lambda: reports(router, "compared") == 1, "it was told")
        with Router(engine, other, flags=flags(top.url, tokenizer)) as router:
            assert claimed(ask(router, text_of(0))) is None
            assert questions(router, "unanswered") == 1


def test_a_request_that_waited_is_compared_too(engine: Engine, top: Service, tokenizer: Path) -> None:
    publish(top, "e0", [text_of(7)])  # not as the prompt begins that is on its way: it would be sent after that one
    with Router(engine, flags=flags(top.url, tokenizer)) as router, busy(router, engine) as (release,):
        waits = ThreadedRequest(router, prompt(text_of(7)))
        wait_until(lambda: router.metric("kvatlas_router_queue") == 1, "it waits in the router")
        engine.behaviour = says(SURE)
        release.set()
        assert claimed(waits.result()) == SURE
        wait_until(lambda: reports(router, "compared") == 1, "it was told")
