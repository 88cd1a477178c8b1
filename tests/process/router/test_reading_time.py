"""A prompt is read only within the time and work that it is worth: others do not wait for it, nor for a template."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.engine import MODEL, Engine, reply

from .deciding import exact, prompt, write_tokenizer
from .running import PLAIN, Router, wait_until

MIB = 1 << 20
CHAT = [{"role": "user", "content": "hello"}]
# For each message, each message is looked at again.
AGAIN = "{% for n in messages %}{% if n.content == m.role %}a{% endif %}{% endfor %}"
QUADRATIC = f"{{% for m in messages %}}{AGAIN}{{{{ m.content }}}}{{% endfor %}}"


def unread(router: Router, reason: str) -> float:
    return router.metric("kvatlas_router_prompts_without_tokens_total", reason=reason)


def ask_from(address: str, router: Router, body: bytes) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", router.port, timeout=60, source_address=(address, 0))
    try:
        connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


@contextmanager
def health(router: Router) -> Iterator[list[float]]:
    """Asks for health again and again, and notes how long each answer takes."""
    took, is_over = [0.0], threading.Event()

    def ask() -> None:
        while not is_over.is_set():
            began = time.monotonic()
            assert router.get("/health")[0] == 200
            took.append(time.monotonic() - began)
            is_over.wait(0.005)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield took
    finally:
        is_over.set()
        asking.join()


def test_others_do_not_wait_for_prompts_that_take_long(engine: Engine, tmp_path: Path) -> None:
    heavy = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "a"}] * 4_000}).encode()
    long = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "a b " * (2 * MIB)}]}).encode()
    model = write_tokenizer(tmp_path, QUADRATIC)
    with Router(engine, flags=(*exact(model), "--no-events")) as router:
        asking = [
            threading.Thread(target=ask_from, args=("127.0.0.1", router, body))
            for _ in range(4)
            for body in (heavy, long)
        ]
        for one in asking:
            one.start()
        wait_until(lambda: engine.asked() > 0 or router.in_flight() > 0 or not asking[0].is_alive(), "they are read")
        began = time.monotonic()
        assert ask_from("127.0.0.2", router, json.dumps(prompt("a b " * 25_000)).encode()) == 200
        # Before, it would have waited for minutes.
        assert time.monotonic() - began < 20
        for one in asking:
            one.join()
        assert engine.asked() == 9, "all have been placed"
        assert unread(router, "took_too_long") >= 4


def test_of_a_long_prompt_only_the_beginning_is_tokenized(engine: Engine, tokenizer: Path) -> None:
    text = "".join(f"{number} " for number in range(400_000))
    with Router(engine, flags=(*exact(tokenizer), "--no-events")) as router:
        for body in (prompt(text), {"model": MODEL, "prompt": text}):
            explained = router.ask(body, path="/explain").json
            # A byte is a token here, and a block is 16 of them.
            assert MIB // 16 - 8 <= explained["blocks"] <= MIB // 16, explained
            assert explained["tokens"] >= MIB - 64
        tokens = router.ask({"model": MODEL, "prompt": [1] * 1_200_000}, path="/explain").json
        assert (tokens["blocks"], tokens["tokens"]) == (MIB // 16, 1_200_000)
        assert unread(router, "too_long") == 3


MANY = "range(100000)"


def twice(what: str) -> str:
    """Does something for each of many, and for each of many again."""
    return f"{{% for a in {MANY} %}}{{% for b in {MANY} %}}{what}{{% endfor %}}{{% endfor %}}"


def growing(first: str, step: str, written: str = "ns.a") -> str:
    """Makes a value of the last one, sixty times."""
    each = f"{{% for i in range(60) %}}{{% set ns.a = {step} %}}{{% endfor %}}"
    return f"{{% set ns = namespace(a={first}) %}}{each}{{{{ {written} }}}}"


ENDLESS = {
    "loops": twice("{% if a == b %}{% endif %}"),
    "writes": twice("{{ 'some text' }}"),
    "set": "{% set a %}" + twice("text") + "{% endset %}{{ a }}",
    "macros": "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "a text that doubles": growing("'some text'", "ns.a + ns.a"),
    "a text that doubles by ~": growing("'some text'", "ns.a ~ ns.a"),
    "a list that doubles": growing("[1]", "ns.a + ns.a"),
    "a list of itself": growing("[1]", "[ns.a, ns.a]"),
    "JSON of a list of itself": growing("[1]", "[ns.a, ns.a]", "ns.a | tojson"),
    "repeated": "{{ 'some text' * 90000000 }}",
    "indented": "{{ [[1]] | tojson(indent=2000000000) }}",
    "replaced": "{% set a = 'a' * 100000 %}{{ a.replace('a', a) }}",
    "filtered": "{% set a = 'a' * 100000 %}{{ a | replace('a', a) }}",
    "joined": "{% set a = 'a' * 100000 %}{{ a.join(range(90000)) }}",
    "formatted": "{{ '{:>2000000000}'.format('a') }}",
    "printed": "{{ '%2000000000d' | format(1) }}",
    "split": "{% set a = 'a,' * 40000000 %}{{ a.split(',') | length }}",
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_a_template_comes_to_an_end(engine: Engine, tmp_path: Path, kind: str) -> None:
    model = write_tokenizer(tmp_path, ENDLESS[kind] + "{% for m in messages %}{{ m.content }}{% endfor %}")
    with Router(engine, flags=(*exact(model), "--no-events", "--http-threads", "1")) as router:
        before = router.memory()
        for _ in range(3):
            assert router.ask({"model": MODEL, "messages": CHAT}).status == 200
        assert router.memory() - before < 256 * MIB
        reasons = ("took_too_long", "template_refuses", "too_long", "no_template")
        assert sum(unread(router, reason) for reason in reasons) == 3


def test_health_does_not_wait_for_what_has_many_items(engine: Engine, tokenizer: Path) -> None:
    item = '{"":0}'
    items = ",".join([item] * (504 * 1024 // 7)).encode()
    chat = json.dumps(CHAT).encode()
    bodies = [
        b'{"messages":' + chat + b',"tools":[' + items + b"]}",
        b'{"messages":[' + items + b"]}",
        b'{"messages":' + chat + b',"x":[' + items + b"]}",
        b'{"input":[' + items + b"]}",
    ]
    with Router(engine, flags=(*exact(tokenizer), "--no-events", "--http-threads", "1")) as router:
        with health(router) as took:
            for body in bodies * 3:
                assert router.ask(body, path="/explain").status == 200
        # On the thread that serves, each took about that long.
        assert max(took) < 0.9, took
        assert unread(router, "too_many_items") + unread(router, "bad_messages") > 0


@pytest.mark.parametrize("piece", [b'"usage":{', b'"usage":{"a":', b'{"usage":{}},', b'{"usage": [{"a":1'])
def test_answers_with_many_counts_are_passed_on_at_once(engine: Engine, piece: bytes) -> None:
    whole = piece * (16 * MIB // len(piece))
    engine.behaviour = reply("200 OK", whole)
    with Router(engine, flags=PLAIN) as router:
        answer = router.ask()
        assert answer.body == whole
        fields = Path(f"/proc/{router.process.pid}/stat").read_text(encoding="ascii").rpartition(") ")[2].split()
        # Hundredths of seconds of the processor. Before, it was more than 10 s.
        assert int(fields[11]) + int(fields[12]) < 400
