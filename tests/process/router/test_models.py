"""Requests go to an engine that serves the model that they name, wherever they name it, and all of them are work."""

import contextlib
import gzip
import http.client
import json
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from tests.support.engine import Engine, hang, whole

from .running import PLAIN, Answer, Router, wait_until

JSON = "application/json"
FORM = "multipart/form-data; boundary=edge"
URL_ENCODED = "application/x-www-form-urlencoded"
ROUNDS = 6


@pytest.fixture(scope="module")
def router() -> Iterator[Router]:
    with ExitStack() as stack:
        engines = [stack.enter_context(Engine(behaviour=whole(), model=model)) for model in ("m1", "m2")]
        made = stack.enter_context(Router(*engines, flags=PLAIN))
        wait_until(lambda: len(json.loads(made.get("/v1/models")[1])["data"]) == 2, "both models are known")
        yield made


def form(model: str, *, before: bool = False) -> bytes:
    audio = b'--edge\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF\x00\r\n--edgy\r\n'
    named = f'--edge\r\nContent-Disposition: form-data; name="model"\r\n\r\n{model}\r\n'.encode()
    return (named + audio if before else audio + named) + b"--edge--\r\n"


def packed(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


def brotli(data: bytes) -> bytes:
    """A frame that is not compressed: RFC 7932, 9.2."""
    length = len(data) - 1
    head = 0b1011 | length << 7 | 1 << 23
    return head.to_bytes(3, "little") + data + b"\x03"


def zstd(data: bytes) -> bytes:
    """A frame that is not compressed: RFC 8878, 3.1.1."""
    head = b"\x28\xb5\x2f\xfd" + b"\xa0" + len(data).to_bytes(4, "little")
    return head + (1 | len(data) << 3).to_bytes(3, "little") + data


def body(model: str, **more: object) -> bytes:
    return json.dumps({**more, "model": model}).encode()


CHAT = {"messages": [{"role": "user", "content": "hello"}]}
SENT: dict[str, tuple[str, str, str, Callable[[str], bytes]]] = {
    "rerank": ("/v1/rerank", JSON, "", lambda model: body(model, query="q", documents=["a", "b"])),
    "score": ("/v1/score", JSON, "", lambda model: body(model, text_1="a", text_2="b")),
    "speech": ("/v1/audio/speech", JSON, "", lambda model: body(model, input="hello", voice="v")),
    "transcription": ("/v1/audio/transcriptions", FORM, "", form),
    "transcription, model first": ("/v1/audio/transcriptions", FORM, "", lambda model: form(model, before=True)),
    "image edit in JSON": ("/v1/images/edits", JSON, "", lambda model: body(model, prompt="a")),
    "count_tokens": ("/v1/messages/count_tokens", JSON, "", lambda model: body(model, **CHAT)),
    "render": ("/v1/completions/render", JSON, "", lambda model: body(model, prompt="a")),
    "video": ("/v1/videos", JSON, "", lambda model: body(model, prompt="a")),
    "form of a page": ("/v1/score", URL_ENCODED, "", lambda model: f"a=b&model={model}".encode()),
    "gzip": ("/v1/chat/completions", JSON, "gzip", lambda model: packed(body(model, **CHAT))),
    "gzip of a stream": ("/v1/chat/completions", JSON, "gzip", lambda model: packed(body(model, **CHAT, stream=True))),
    "gzip of a form": ("/v1/audio/transcriptions", FORM, "gzip", lambda model: packed(form(model))),
    "deflate": ("/v1/completions", JSON, "deflate", lambda model: zlib.compress(body(model, prompt="a"))),
    "raw deflate": ("/v1/completions", JSON, "deflate", lambda model: raw_deflate(body(model, prompt="a"))),
    "brotli": ("/v1/embeddings", JSON, "br", lambda model: brotli(body(model, input="a"))),
    "zstd": ("/v1/messages", JSON, "zstd", lambda model: zstd(body(model, **CHAT))),
}  # fmt: skip


def send(router: Router, kind: str, model: str) -> Answer:
    path, content, encoding, made = SENT[kind]
    encodings = {"content-encoding": encoding} if encoding else {}
    return router.ask(made(model), path=path, headers={"content-type": content, **encodings})


@pytest.mark.parametrize("kind", SENT)
def test_the_model_is_read_wherever_it_stands(router: Router, kind: str) -> None:
    wrong, right = router.engines.values()
    before = wrong.asked(), right.asked()
    for _ in range(ROUNDS):
        assert send(router, kind, "m2").status == 200
    assert (wrong.asked() - before[0], right.asked() - before[1]) == (0, ROUNDS)
    assert right.last.body == SENT[kind][3]("m2"), "it is passed on as it came"
    refused = send(router, kind, "m3")
    assert (refused.status, refused.json["error"]["code"]) == (404, "model_not_found")
    assert wrong.asked() + right.asked() == sum(before) + ROUNDS


def test_the_model_may_be_in_the_query(router: Router) -> None:
    wrong, right = router.engines.values()
    before = wrong.asked(), right.asked()
    for _ in range(ROUNDS):
        router.call("POST", "/v1/score?a=b&model=m2", {"text_1": "a"})
    assert (wrong.asked() - before[0], right.asked() - before[1]) == (0, ROUNDS)


@pytest.mark.parametrize("encoding", ["gzip, gzip", "gzip, deflate", "zstd, identity, gzip", "gzip, unheard-of"])
def test_one_encoding_is_as_many_as_are_undone(router: Router, encoding: str) -> None:
    before = sum(engine.asked() for engine in router.engines.values())
    data = packed(packed(body("m2", **CHAT)))
    refused = router.ask(data, headers={"content-encoding": encoding})
    assert (refused.status, refused.error["code"]) == (415, "several_encodings")
    assert "one encoding" in refused.error["message"]
    assert sum(engine.asked() for engine in router.engines.values()) == before


PATHS = ("/v1/rerank", "/v1/audio/transcriptions", "/v1/messages/count_tokens", "/v1/embeddings", "/v1/files")


@pytest.mark.parametrize("path", PATHS)
def test_an_engine_that_never_answers_gets_few_requests_on_any_path(path: str) -> None:
    with ExitStack() as stack:
        engines = [stack.enter_context(Engine(behaviour=whole())) for _ in range(4)]
        engines[0].behaviour = hang
        flags = ("--no-events", "--tokenizer", "none")
        router = stack.enter_context(Router(*engines, flags=flags))
        asked = {"model": "model", "query": "a question", "input": "text", "documents": ["a", "b"]}
        for number in range(80):
            done = threading.Event()

            def ask(done: threading.Event = done) -> None:
                with contextlib.suppress(OSError, http.client.HTTPException):  # those that hang are cut off in the end
                    router.ask(asked, path=path)
                    done.set()

            had = engines[0].asked()
            threading.Thread(target=ask, daemon=True).start()
            wait_until(lambda: done.is_set() or engines[0].asked() > had, f"request {number} is somewhere")  # noqa: B023
        assert engines[0].asked() <= 80 // 10, [engine.asked() for engine in engines]
