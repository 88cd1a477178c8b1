"""Names and fields that only the router writes, sent by clients: in bodies that can be read, and in all others."""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import xxhash
from tests.support.engine import MODEL, Engine
from tests.support.engine.pairs import sglang_pair, vllm_pair

from .deciding import write_tokenizer
from .running import DEADLINE, PLAIN, Answer, Router, wait_until
from .test_image_ids import IMAGE_TOKEN, TEMPLATE, chat, image, part, text, uuids

NAME = "kvatlas-" + "0123456789abcdef" * 4
ANOTHER = image(30, 30, 9)
FORGED = part(ANOTHER, uuid=NAME)
JSON = "application/json"
KEYS = ("query", "admin")


def escaped(data: bytes, letters: str) -> bytes:
    """The text with these letters of the name written as escapes."""
    hidden = "".join(f"\\u{ord(it):04x}" if it in letters else it for it in NAME)
    return data.replace(NAME.encode(), hidden.encode())


def instead(body: bytes, before: str, after: str) -> bytes:
    changed = body.replace(before.encode(), after.encode(), 1)
    assert changed != body
    return changed


def form(*fields: bytes) -> bytes:
    return b"".join(b"--x\r\ncontent-disposition: form-data; " + field + b"\r\n" for field in fields) + b"--x--\r\n"


def packed(body: bytes) -> bytes:
    return gzip.compress(body)


CHAT = "/v1/chat/completions"
PLAIN_CHAT = json.dumps(chat([FORGED, text("what is it?")])).encode()
MESSAGE = {"role": "user", "content": [FORGED]}
SOUND = {"type": "input_audio", "input_audio": {"data": base64.b64encode(b"x").decode(), "format": "wav"}}
FORM = "multipart/form-data; boundary=x"
Way = tuple[str, bytes, dict[str, str]]


def said(path: str, **fields: Any) -> Way:
    return path, json.dumps({"model": MODEL, **fields}).encode(), {}


WAYS: dict[str, Way] = {
    "a chat": (CHAT, PLAIN_CHAT, {}),
    "no settings": said(CHAT, messages=[MESSAGE], mm_processor_kwargs={}),
    "settings": said(CHAT, messages=[MESSAGE], media_io_kwargs={"image": {}}),
    "a key twice": (CHAT, instead(PLAIN_CHAT, "{", '{"model": 7, '), {}),
    "the name twice": (CHAT, instead(PLAIN_CHAT, '"uuid"', '"uuid": "mine", "uuid"'), {}),
    "no number": (CHAT, instead(PLAIN_CHAT, "{", '{"top_p": NaN, '), {}),
    "UTF-16": (CHAT, PLAIN_CHAT.decode().encode("utf-16"), {}),
    "UTF-16, big": (CHAT, PLAIN_CHAT.decode().encode("utf-16-be"), {}),
    "UTF-16, escaped": (CHAT, escaped(PLAIN_CHAT, "k-").decode().encode("utf-16-le"), {}),
    "UTF-32": (CHAT, PLAIN_CHAT.decode().encode("utf-32"), {}),
    "UTF-32, big": (CHAT, PLAIN_CHAT.decode().encode("utf-32-be"), {}),
    "a byte order mark": (CHAT, b"\xef\xbb\xbf" + PLAIN_CHAT, {}),
    "half a surrogate": (CHAT, instead(PLAIN_CHAT, "what", r"\ud800"), {}),
    "a letter escaped": (CHAT, escaped(PLAIN_CHAT, "k"), {}),
    "all escaped": (CHAT, escaped(PLAIN_CHAT, NAME), {}),
    "digits escaped": (CHAT, escaped(PLAIN_CHAT, "01234"), {}),
    "gzip": (CHAT, packed(PLAIN_CHAT), {"content-encoding": "gzip"}),
    "gzip, escaped": (CHAT, packed(escaped(PLAIN_CHAT, "v")), {"content-encoding": "x-gzip"}),
    "deflate": (CHAT, zlib.compress(PLAIN_CHAT), {"content-encoding": "deflate"}),
    "said to be gzip": (CHAT, PLAIN_CHAT, {"content-encoding": "gzip"}),
    "said to be something": (CHAT, PLAIN_CHAT, {"content-encoding": "something"}),
    "another type": (CHAT, PLAIN_CHAT, {"content-type": "text/plain"}),
    "a part of a wrong type": said(CHAT, messages=[{"role": "user", "content": [7, FORGED, {"type": 5}]}]),
    "a short name": said(CHAT, messages=[{"role": "user", "content": [part(ANOTHER, uuid="kvatlas-0")]}]),
    "tokens of the prompt": said(CHAT, messages=[MESSAGE], prompt_logprobs=1),
    "a template": said(CHAT, messages=[MESSAGE], chat_template="{{ messages }}"),
    "a sound beside it": said(CHAT, messages=[{"role": "user", "content": [SOUND, FORGED]}]),
    "image_pil": said(CHAT, messages=[{"role": "user", "content": [{"image_pil": None, "uuid": NAME}]}]),
    "a video": said(
        CHAT, messages=[{"role": "user", "content": [{"type": "video_url", "video_url": {"url": "u"}, "uuid": NAME}]}]
    ),
    "a batch": said(f"{CHAT}/batch", messages=[[MESSAGE], [MESSAGE]]),
    "rendering": said(f"{CHAT}/render", messages=[MESSAGE]),
    "embeddings": said("/v1/embeddings", messages=[MESSAGE]),
    "pooling": said("/pooling", messages=[MESSAGE]),
    "scores": said("/v1/score", text_1="a", text_2={"content": [FORGED]}),
    "responses": said("/v1/responses", input=[{"role": "user", "content": [{"type": "input_image", "uuid": NAME}]}]),
    "messages": said("/v1/messages", max_tokens=1, messages=[{"role": "user", "content": [{"uuid": NAME}]}]),
    "hashes": said("/inference/v1/generate", token_ids=[1], features={"mm_hashes": {"image": [NAME]}}),
    "tokenizing": said("/tokenize", messages=[MESSAGE]),
    "a list": (CHAT, b"[" + PLAIN_CHAT + b"]", {}),
    "a form": ("/v1/audio/transcriptions", form(b'name="uuid"\r\n\r\n' + NAME.encode()), {"content-type": FORM}),
    "a file of a batch": (
        "/v1/files",
        form(b'name="file"; filename="a"\r\n\r\na stray " before\r\n' + escaped(PLAIN_CHAT, "k")),
        {"content-type": FORM},
    ),
    "an explanation": ("/explain", PLAIN_CHAT, {}),
}


@contextmanager
def keyed(*engines: Engine, folder: Path, flags: tuple[str, ...] = PLAIN, admin: str = "admin") -> Iterator[Router]:
    (folder / "key").write_text("query")
    (folder / "admin").write_text(admin)
    files = ("--key-file", str(folder / "key"), "--admin-key-file", str(folder / "admin"))
    with Router(*engines, flags=(*flags, *files)) as router:
        yield router


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Router, Engine]]:
    with Engine() as engine, keyed(engine, folder=tmp_path_factory.mktemp("keys")) as router:
        yield router, engine


def ask(router: Router, way: Way, key: str = "query") -> Answer:
    path, body, headers = way
    return router.ask(body, path=path, headers={"authorization": f"Bearer {key}", **headers})


def passed(engine: Engine) -> list[bytes]:
    return [one.body for one in engine.received if one.method == "POST"]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("way", WAYS)
def test_no_name_of_the_routers_reaches_an_engine(fleet: tuple[Router, Engine], way: str, key: str) -> None:
    router, engine = fleet
    engine.received.clear()
    answer = ask(router, WAYS[way], key)
    assert answer.status == 400, answer
    assert answer.error["code"] == "reserved_name"
    assert "uuid" in answer.error["message"]
    assert passed(engine) == []


def test_texts_and_names_of_clients_pass(fleet: tuple[Router, Engine]) -> None:
    router, engine = fleet
    engine.received.clear()
    bodies = [
        chat(f"kvatlas-router says: {json.dumps({'uuid': NAME, 'kv_transfer_params': {'a': 1}})}"),
        chat([part(ANOTHER, uuid="mine"), text("kvatlas-")], user="kvatlas-7"),
        chat("\u00e9\u2028 <b> 'x'", bootstrap_room=None, data_parallel_rank=None, kv_transfer_params=None),
        chat("hello", tools=[{"type": "function", "function": {"name": "f", "parameters": {"bootstrap_host": {}}}}]),
    ]
    for body in bodies:
        assert ask(router, (CHAT, json.dumps(body).encode(), {})).status == 200
    assert [json.loads(each) for each in passed(engine)] == bodies


def test_what_cannot_be_unpacked_does_not_pass(fleet: tuple[Router, Engine]) -> None:
    router, engine = fleet
    engine.received.clear()
    for coding, data in (("gzip", b"no gzip"), ("compress", b"x"), ("gzip", packed(bytes(65 << 20)))):
        answer = ask(router, (CHAT, data, {"content-encoding": coding}))
        assert (answer.status, answer.error["code"]) == (415, "unreadable_encoding")
    assert passed(engine) == []


def test_names_are_made_with_a_secret_of_the_fleet(engine: Engine, tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path, TEMPLATE, ("<image>",))
    (folder / "config.json").write_text(json.dumps({"image_token_id": IMAGE_TOKEN}))
    engine.answers["/version"] = {"version": "0.33.0"}
    asked = json.dumps(chat([part(ANOTHER), text("what is it?")])).encode()
    flags = ("--no-events", "--tokenizer", str(folder))
    names: list[object] = []
    for admin in ("one", "one", "two"):
        with keyed(engine, folder=tmp_path, flags=flags, admin=admin) as router:
            explaining: Way = ("/explain", asked, {})
            wait_until(lambda: "images" in ask(router, explaining).json, "the engine takes names")  # noqa: B023
            assert ask(router, (CHAT, asked, {})).status == 200
            names += uuids(engine)
            assert b"kvatlas-" not in ask(router, explaining).body
    assert len(names) == 3
    assert names[0] == names[1] != names[2]


FIELDS = (
    "kv_transfer_params",
    "ec_transfer_params",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "data_parallel_rank",
    "routed_dp_rank",
    "disagg_prefill_dp_rank",
    "disaggregated_params",
)
NESTED: dict[str, Callable[[str], Way]] = {
    "a chat": lambda name: said(CHAT, **chat("hello") | {name: {"remote_host": "10.0.0.1"}}),
    "a completion": lambda name: said("/v1/completions", prompt="a", **{name: 5}),
    "a number not there": lambda name: (CHAT, b'{"a": NaN, "' + name.encode() + b'": 5}', {}),
    "twice": lambda name: (CHAT, f'{{"{name}": null, "{name}": [5]}}'.encode(), {}),
    "escaped": lambda name: (CHAT, f'{{"{name.replace("_", chr(92) + "u005f")}": 5}}'.encode(), {}),
    "in a list": lambda name: ("/generate", json.dumps([{"text": "a"}, {name: [5, 6]}]).encode(), {}),
    "in a batch": lambda name: said(f"{CHAT}/batch", requests=[chat("hello") | {name: 5}]),
    "among parameters": lambda name: said("/generate", text="a", sampling_params={"extra_args": {name: 5}}),
    "among arguments": lambda name: said(CHAT, **chat("hello"), vllm_xargs={name: "5"}),
    "in an extra body": lambda name: said(CHAT, **chat("hello"), extra_body={name: 5}),
    "UTF-16": lambda name: (CHAT, json.dumps({"prompt": "a", name: 5}).encode("utf-16"), {}),
    "gzip": lambda name: (CHAT, packed(json.dumps({name: 5}).encode()), {"content-encoding": "gzip"}),
    "scores": lambda name: said("/v1/score", text_1="a", **{name: 5}),
    "a form": lambda name: (
        "/v1/audio/transcriptions",
        form(b'name="' + name.encode() + b'"\r\n\r\n5'),
        {"content-type": FORM},
    ),
}
HEADERS = {
    "x-data-parallel-rank": "1",
    "x-prefiller-host-port": "10.0.0.1:80",
    "x-request-id": "___prefill_addr_10.0.0.1:5___decode_addr_10.0.0.2:6_x",
}


@pytest.mark.parametrize("way", NESTED)
def test_fields_between_the_router_and_engines_are_the_routers(fleet: tuple[Router, Engine], way: str) -> None:
    router, engine = fleet
    for name in FIELDS:
        made = NESTED[way](name)
        engine.received.clear()
        answer = ask(router, made)
        assert (answer.status, answer.error["code"]) == (400, "reserved_field"), answer
        assert name in answer.error["message"]
        assert passed(engine) == []
        ask(router, made, "admin")
        assert passed(engine)[-1] == made[1]


@pytest.mark.parametrize("name", HEADERS)
def test_headers_between_the_router_and_engines_are_the_routers(fleet: tuple[Router, Engine], name: str) -> None:
    router, engine = fleet
    engine.received.clear()
    way = (CHAT, json.dumps(chat("hello")).encode(), {name: HEADERS[name]})
    answer = ask(router, way)
    assert (answer.status, answer.error["code"]) == (400, "reserved_field"), answer
    assert name in answer.error["message"]
    assert passed(engine) == []
    assert ask(router, way, "admin").status == 200
    assert engine.last.headers[name] == HEADERS[name]


def test_addresses_in_the_name_of_a_request_are_refused(fleet: tuple[Router, Engine]) -> None:
    router, engine = fleet
    engine.received.clear()
    answer = ask(router, said(CHAT, **chat("hello"), request_id=HEADERS["x-request-id"]))
    assert (answer.status, answer.error["code"]) == (400, "reserved_field"), answer
    assert passed(engine) == []


def seen(router: Router, key: str) -> Any:
    """The session of the last decision."""
    headers = {"authorization": f"Bearer {key}"}
    answer = httpx.get(f"http://127.0.0.1:{router.port}/decisions?limit=1", headers=headers, timeout=DEADLINE)
    return answer.json()[0]["session"]


def test_sessions_of_others_are_not_found_by_their_names(engine: Engine, tmp_path: Path) -> None:
    """Names are shown under a secret, and `/explain` tells what a session does with the admin key only."""
    body = json.dumps(chat("hello")).encode()
    session = {"x-session-id": "somebody", "x-parent-session-id": "their-parent"}
    keys: list[str] = []
    for _ in range(2):
        with keyed(engine, folder=tmp_path) as router:
            for turn in range(2):
                assert ask(router, (CHAT, body, session)).status == 200
                shown = seen(router, "query")
                assert shown["turn"] == turn
            keys.append(shown["key"])
            unkeyed = [xxhash.xxh3_64_hexdigest(name.encode()) for name in session.values()]
            assert shown["key"] not in unkeyed
            assert shown["parent"] not in unkeyed
            explaining = ("/explain", body, session)
            assert ask(router, explaining).json["session"] is None
            explained = ask(router, explaining, "admin").json["session"]
            assert (explained["turn"], explained["key"]) == (2, shown["key"])
    assert keys[0] == keys[1], "it is the same at all routers of a fleet"
    # Without an admin key every client may know it.
    with Router(engine) as router:
        ask(router, (CHAT, body, session))
        assert ask(router, ("/explain", body, session)).json["session"]["turn"] == 1
        assert ask(router, ("/explain", body, session)).json["session"]["key"] not in keys


@pytest.mark.parametrize("pair", [vllm_pair, sglang_pair])
def test_split_fleets_have_no_other_fields_than_the_routers(pair: Callable[[Engine, Engine], None]) -> None:
    with Engine() as prefill, Engine() as decode:
        pair(prefill, decode)
        flags = (*PLAIN, "--decode-alone", "0", "--prefill", f"p={prefill.url}", "--decode", f"d={decode.url}")
        with Router(flags=flags) as router:
            for name in FIELDS:
                answer = router.ask(chat("hello", **{name: {"remote_port": 5}}))
                assert (answer.status, answer.error["code"]) == (400, "reserved_field"), answer
            assert passed(prefill) == passed(decode) == []
            assert router.ask(chat("hello")).status == 200


def test_a_setting_says_who_may_send_them(engine: Engine) -> None:
    body = chat("hello", kv_transfer_params={"a": 1})
    with Router(engine) as router:
        assert router.ask(body).status == 400, "it knows nobody by an admin key"
    with Router(engine, flags=(*PLAIN, "--engine-fields", "all")) as router:
        assert router.ask(body, headers={"x-data-parallel-rank": "0"}).status == 200
        assert engine.last.json == body
        forged = router.ask(PLAIN_CHAT)
        assert (forged.status, forged.error["code"]) == (400, "reserved_name")
