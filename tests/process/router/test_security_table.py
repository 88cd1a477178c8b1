"""The table of the security page that says how much each kind of caller can take: each number in it is tried."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.support.engine import MODEL, Behaviour, Engine, chunk, head, raw

from . import http2
from .deciding import exact, write_tokenizer
from .running import MESSAGES, PLAIN, Router, wait_until
from .test_flooding_engines import without_end

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "security.md"
KIB, MIB = 1 << 10, 1 << 20
ROUND = 40 * MIB  # what reading takes whatever is read
SLACK = 8.0  # seconds by which a machine with much to do may be late
KEY, ADMIN = "query-key-0123456789", "admin-key-0123456789"


def table() -> dict[str, list[str]]:
    """The rows of the table, each by who it is about."""
    part = PAGE.read_text(encoding="utf-8").partition("## How much each can take")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in part.splitlines() if line[:1] == "|"]
    assert rows[0] == ["who", "memory", "time", "at once"]
    return {row[0].strip("| "): row[1:] for row in rows[2:]}


ROWS = table()


@pytest.fixture
def flags(tmp_path: Path) -> tuple[str, ...]:
    """Flags for the two keys."""
    for name, key in (("key", KEY), ("admin", ADMIN)):
        (tmp_path / name).write_text(key)
        (tmp_path / name).chmod(0o600)
    return ("--key-file", str(tmp_path / "key"), "--admin-key-file", str(tmp_path / "admin"))


class Peak:
    """The most memory that a process has had since this was made."""

    def __init__(self, router: Router) -> None:
        self._process = Path(f"/proc/{router.process.pid}")
        (self._process / "clear_refs").write_text("5", encoding="ascii")
        self._before = router.memory()

    def grown(self) -> int:
        found = re.search(r"VmHWM:\s+(\d+) kB", (self._process / "status").read_text(encoding="ascii"))
        assert found is not None
        return (int(found[1]) << 10) - self._before


def asked(router: Router, method: str, path: str, body: bytes = b"", key: str | None = KEY, *more: str) -> int:
    """The status of an answer; 0 if there is none."""
    connection = http.client.HTTPConnection("127.0.0.1", router.port, timeout=60)
    fields = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
    fields |= dict(field.split(": ", 1) for field in more)
    try:
        connection.request(method, path, body, fields)
        answer = connection.getresponse()
        answer.read()
    except (OSError, http.client.HTTPException):
        return 0
    else:
        return answer.status
    finally:
        connection.close()


def ready(router: Router) -> None:
    wait_until(lambda: asked(router, "GET", "/ready", key=None) == 200, "it is ready")


@contextlib.contextmanager
def health_within(router: Router, seconds: float) -> Iterator[None]:
    """Asks for health again and again: each answer must come in time."""
    done, took = threading.Event(), [0.0]

    def ask() -> None:
        while not done.wait(0.05):
            began = time.monotonic()
            status = asked(router, "GET", "/health", key=None)
            took.append(time.monotonic() - began if status == 200 else float("inf"))

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    assert max(took) <= seconds


# Strangers


def _streams(count: int) -> bytes:
    block = http2.block((":method", "GET"), (":scheme", "http"), (":path", "/health"), (":authority", "a"))
    kind = http2.END_HEADERS | http2.END_STREAM
    many = b"".join(http2.frame(http2.HEADERS, kind, 2 * number + 1, block) for number in range(count))
    settings = http2.frame(http2.SETTINGS, 0, 0, struct.pack(">HI", http2.INITIAL_WINDOW_SIZE, 0))
    return http2.PREFACE + settings + many


UNREAD = _streams(1000)
UNFINISHED = b"GET /health HTTP/1.1\r\nhost: a\r\nx: " + b"y" * (100 * KIB)


@contextlib.contextmanager
def many_strangers(router: Router) -> Iterator[None]:
    """Strangers with all that they can have: streams that they do not read, and heads that do not end."""
    with ExitStack() as stack:
        for number in range(600):
            with contextlib.suppress(OSError):
                made = stack.enter_context(socket.create_connection(("127.0.0.1", router.port), 5))
                made.settimeout(0.5)
                made.sendall(UNREAD if number % 2 else UNFINISHED)
        yield


def strangers_memory(flags: tuple[str, ...], most: int) -> None:
    with Engine() as engine, Router(engine, flags=(*PLAIN, *flags), ready=False) as router:
        ready(router)
        peak = Peak(router)
        with many_strangers(router):
            time.sleep(3.0)
            assert peak.grown() <= most * MIB
            assert asked(router, "GET", "/v1/models") == 200


def strangers_health(flags: tuple[str, ...], most: int) -> None:
    with Engine() as engine, Router(engine, flags=(*PLAIN, *flags), ready=False) as router:
        ready(router)
        with health_within(router, most + 1.0), many_strangers(router):
            time.sleep(1.0)


def strangers_reset(flags: tuple[str, ...], most: int) -> None:
    with Engine() as engine, Router(engine, flags=(*PLAIN, *flags), ready=False) as router:
        ready(router)
        with http2.Connection(router.port, 0) as made:
            began = time.monotonic()
            made.ask("GET", "/health")
            while (got := made.read()) is not None and got[0] not in (http2.RST_STREAM, http2.GOAWAY):
                pass
            assert most - 1 <= time.monotonic() - began <= most + SLACK


def answered_streams(router: Router, *fields: tuple[str, str]) -> int:
    """Streams of a connection, of more than it may have, that have got the head of an answer at once."""
    with http2.Connection(router.port, 0, timeout=1.0) as made:
        path = "/v1/models" if fields else "/health"
        with contextlib.suppress(OSError):
            for _ in range(1200):
                made.ask("GET", path, b"", *fields)
        heads: set[int] = set()
        with contextlib.suppress(OSError):
            while (got := made.read()) is not None:
                if got[0] == http2.HEADERS:
                    heads.add(got[2])
                if got[0] == http2.RST_STREAM and got[2] in heads:
                    break  # time is up for the first
        return len(heads)


def strangers_streams(flags: tuple[str, ...], most: int) -> None:
    with Engine() as engine, Router(engine, flags=(*PLAIN, *flags), ready=False) as router:
        ready(router)
        assert answered_streams(router) <= most


# Clients with the query key

ITEMS = {"/v1/responses": "input", "/v1/chat/completions": "tools", "/v1/completions": "prompt", "/v1/rerank": "more"}


def client_memory(flags: tuple[str, ...], most: int, tokenizer: Path) -> None:
    with Engine() as engine, Router(engine, flags=(*exact(tokenizer), "--no-events", *flags), ready=False) as router:
        ready(router)
        for path, name in ITEMS.items():
            body = f'{{"model": "{MODEL}", "{name}": [{"{}," * (5 * MIB)}{{}}]}}'.encode()
            peak = Peak(router)
            assert asked(router, "POST", path, gzip.compress(body, 1), KEY, "content-encoding: gzip") < 500
            assert peak.grown() <= most * len(body) + ROUND, path


def client_reading(flags: tuple[str, ...], most: int, tokenizer: Path) -> None:
    body = json.dumps({"model": MODEL, "prompt": "a b" * (3 * MIB)}).encode()
    with Engine() as engine, Router(engine, flags=(*exact(tokenizer), "--no-events", *flags), ready=False) as router:
        ready(router)
        began = time.monotonic()
        assert asked(router, "POST", "/v1/completions", body) == 200
        assert time.monotonic() - began <= most / 1000 + SLACK


def client_streams(flags: tuple[str, ...], most: int) -> None:
    with Engine() as engine, Router(engine, flags=(*PLAIN, *flags), ready=False) as router:
        ready(router)
        assert answered_streams(router, ("authorization", f"Bearer {KEY}")) <= most


# Operators


def changed(flags: tuple[str, ...], most: int, made: Callable[[int], bytes]) -> None:
    """A change with so much of something is taken, or refused for another reason; one with more is not."""
    with Engine() as engine, Router(engine, flags=(*PLAIN, *flags), ready=False) as router:
        ready(router)
        assert asked(router, "POST", "/engines", made(most), ADMIN) == 201
        assert asked(router, "POST", "/engines", made(most + 1), ADMIN) in (400, 413)


def added(**about: str) -> bytes:
    return json.dumps({"url": "http://127.0.0.1:1", "name": "added"} | about).encode()


def operator_change(flags: tuple[str, ...], most: int) -> None:
    changed(flags, most, lambda size: added().ljust(size * KIB if size == most else most * KIB + 1))


def operator_key(flags: tuple[str, ...], most: int) -> None:
    changed(flags, most, lambda size: added(key="k" * (size * KIB if size == most else most * KIB + 1)))


def operator_address(flags: tuple[str, ...], most: int) -> None:
    start = "http://127.0.0.1:1/"
    changed(flags, most, lambda size: added(url=start.ljust(size * KIB if size == most else most * KIB + 1, "a")))


def operator_name(flags: tuple[str, ...], most: int) -> None:
    changed(flags, most, lambda size: added(name="n" * size))


# Engines

OVERSIZED = "kvatlas_router_engine_oversized_answers_total"
QUICK = (*PLAIN, "--health-interval", "100ms", "--load-interval", "100ms", "--health-timeout", "10s")


def says(path: str, body: bytes) -> Callable[[Engine], None]:
    def act(engine: Engine) -> None:
        engine.answers[path] = raw(head("200 OK", f"content-length: {len(body)}") + body)

    return act


def engine_says(path: str, fits: bytes, too_long: bytes) -> None:
    """An answer about itself is taken, or left out and counted."""
    with Engine() as engine, Engine() as other:
        says(path, fits)(engine)
        with Router(engine, other, flags=QUICK) as router:
            wait_until(lambda: engine.times(path) >= 2, "it was asked")
            assert router.metric(OVERSIZED, engine="e0") == 0
        says(path, too_long)(engine)
        with Router(engine, other, flags=QUICK) as router:
            wait_until(lambda: router.metric(OVERSIZED, engine="e0") >= 1, "it is counted")


def filled(start: bytes, size: int, end: bytes) -> bytes:
    return start + b" " * (size - len(start) - len(end)) + end


CARDS = b'{"data": [{"id": "%s"}]' % MODEL.encode()


def engine_lists(flags: tuple[str, ...], most: int) -> None:
    del flags
    engine_says("/v1/models", filled(CARDS, most * MIB, b"}"), filled(CARDS, most * MIB + 1, b"}"))


def engine_words(flags: tuple[str, ...], most: int) -> None:
    del flags
    start = b'{"version": "0.33.0"'
    engine_says("/version", filled(start, most * KIB, b"}"), filled(start, most * KIB + 1, b"}"))


def engine_metrics(flags: tuple[str, ...], most: int) -> None:
    del flags
    line = b"vllm:num_requests_running 1\n"
    text = line * (most * MIB // len(line))
    engine_says("/metrics", text, text + line * 2)


def engine_health(flags: tuple[str, ...], most: int) -> None:
    floods: list[Behaviour] = [
        without_end(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        without_end(head("200 OK", "transfer-encoding: chunked", kind="text/event-stream"), chunk(b": nothing\n\n")),
    ]
    with Engine() as engine, Router(engine, flags=(*PLAIN, *flags, "--wait-for-engine", "0s"), ready=False) as router:
        ready(router)
        body = json.dumps({"model": MODEL, "messages": MESSAGES, "stream": True}).encode()
        for flood in floods:
            engine.behaviour = flood
            with health_within(router, most), ExitStack() as stack:
                for _ in range(4):
                    made = stack.enter_context(socket.create_connection(("127.0.0.1", router.port), 5))
                    lines = ("POST /v1/chat/completions HTTP/1.1", "host: a", "content-type: application/json")
                    fields = (f"authorization: Bearer {KEY}", f"content-length: {len(body)}", "", "")
                    made.sendall("\r\n".join((*lines, *fields)).encode() + body)
                time.sleep(1.0)


def engine_models(flags: tuple[str, ...], most: int) -> None:
    del flags

    def cards(count: int) -> bytes:
        return json.dumps({"data": [{"id": f"m{number}"} for number in range(count)]}).encode()

    engine_says("/v1/models", cards(most), cards(most + 1))


def engine_names(flags: tuple[str, ...], most: int) -> None:
    del flags

    def cards(length: int) -> bytes:
        return json.dumps({"data": [{"id": "m"}, {"id": "n" * length}]}).encode()

    engine_says("/v1/models", cards(most), cards(most + 1))


def engine_interim(flags: tuple[str, ...], most: int) -> None:
    del flags
    interim, whole = b"HTTP/1.1 103 Early Hints\r\n\r\n", head("200 OK", "content-length: 2") + b"{}"
    with Engine() as engine, Router(engine, flags=(*PLAIN, "--retries", "0", "--wait-for-engine", "0s")) as router:
        for count, status in ((most, 200), (most + 1, 502)):
            engine.behaviour = raw(interim * count + whole)
            assert router.ask().status == status


# Peers


def peer_report(flags: tuple[str, ...], most: int) -> None:
    with Engine() as engine, Router(engine, flags=(*PLAIN, *flags), ready=False) as router:
        ready(router)
        peak = Peak(router)
        body = b'{"more": [' + b"[]," * ((most * MIB - 13) // 3) + b"0]}"
        assert asked(router, "POST", "/peers/requests", body.ljust(most * MIB), ADMIN) in (200, 400)
        # What is too long is refused before it comes.
        lines = ("POST /peers/requests HTTP/1.1", "host: a", "content-type: application/json", "connection: close")
        fields = (f"authorization: Bearer {ADMIN}", f"content-length: {most * MIB + 1}", "", "")
        assert router.talk("\r\n".join((*lines, *fields)).encode()).startswith(b"HTTP/1.1 413")
        assert peak.grown() <= 2 * most * MIB + ROUND


# Model directories

TEMPLATE = (
    "{% if messages[0]['content'] == 'endless' %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}"
    "{% endfor %}{% else %}{% for a in range(99999) %}{{ 'x' * 9999 }}{% endfor %}{% endif %}"
)


def template(flags: tuple[str, ...], folder: Path) -> Iterator[tuple[float, int]]:
    """The seconds and the memory that chats take whose template has no end."""
    write_tokenizer(folder, TEMPLATE)
    with Engine() as engine, Router(engine, flags=(*exact(folder), "--no-events", *flags), ready=False) as router:
        ready(router)
        for words in ("endless", "large"):
            body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": words}]}).encode()
            peak, began = Peak(router), time.monotonic()
            assert asked(router, "POST", "/v1/chat/completions", body) == 200
            yield time.monotonic() - began, peak.grown()


def template_memory(flags: tuple[str, ...], most: int, tmp_path: Path) -> None:
    assert most > 0
    assert max(memory for _time, memory in template(flags, tmp_path)) <= ROUND


def template_time(flags: tuple[str, ...], most: int, tmp_path: Path) -> None:
    assert max(seconds for seconds, _memory in template(flags, tmp_path)) <= most / 1000 + SLACK


# Each number, by what stands around it, and what tries it.
Trial = Callable[..., None]
STRANGERS, CLIENT = "strangers, all of them together", "a client with the query key"
OPERATOR, ENGINE, PEER = "an operator with the admin key", "an engine", "a peer"
DIRECTORY = "a model directory"
CLAIMS: dict[str, list[tuple[str, Trial]]] = {
    STRANGERS: [
        (r"^(\d+) MiB$", strangers_memory),
        (r"not read is reset after (\d+) s", strangers_reset),
        (r"health is answered within (\d+) s", strangers_health),
        (r"(\d+) streams of a connection", strangers_streams),
    ],
    CLIENT: [
        (r"(\d+) \D+ the unpacked size of a request", client_memory),
        (r"(\d+) ms for reading a prompt", client_reading),
        (r"([\d,]+) streams of a connection", client_streams),
    ],
    OPERATOR: [
        (r"(\d+) KiB for a change", operator_change),
        (r"(\d+) KiB for a key", operator_key),
        (r"(\d+) KiB for an address", operator_address),
        (r"(\d+) bytes for a name", operator_name),
    ],
    ENGINE: [
        (r"(\d+) MiB for lists", engine_lists),
        (r"(\d+) KiB for its other answers", engine_words),
        (r"(\d+) MiB of metrics", engine_metrics),
        (r"health is answered within (\d+) s", engine_health),
        (r"([\d,]+) models", engine_models),
        (r"names of (\d+) bytes", engine_names),
        (r"(\d+) interim answers \(1xx\)", engine_interim),
    ],
    PEER: [(r"(\d+) MiB for a report", peer_report)],
    DIRECTORY: [
        (r"(\d+) \D+ the unpacked size of a request", template_memory),
        (r"(\d+) ms for a template", template_time),
    ],
}
TRIALS = [(who, pattern, trial) for who, claims in CLAIMS.items() for pattern, trial in claims]


def test_each_number_of_the_table_is_tried() -> None:
    assert ROWS.keys() == CLAIMS.keys()
    for who, cells in ROWS.items():
        left = list(cells)
        for pattern, _trial in CLAIMS[who]:
            left = [re.sub(pattern, "", cell) for cell in left]
        assert not re.findall(r"\d", " ".join(left)), f"{who}: nothing tries what is left of {cells}: {left}"


@pytest.mark.parametrize(("who", "pattern", "trial"), TRIALS, ids=[trial.__name__ for _who, _pattern, trial in TRIALS])
def test_the_table_holds(
    who: str, pattern: str, trial: Trial, flags: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    found = [match for cell in ROWS[who] if (match := re.search(pattern, cell)) is not None]
    assert len(found) == 1, ROWS[who]
    more = {name: request.getfixturevalue(name) for name in ("tokenizer", "tmp_path") if name in names_of(trial)}
    trial(flags, int(found[0][1].replace(",", "")), **more)


def names_of(trial: Trial) -> tuple[str, ...]:
    return trial.__code__.co_varnames[: trial.__code__.co_argcount]
