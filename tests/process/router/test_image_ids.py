"""Chats with images before engines that call an image by the `uuid` of its part, as vLLM does."""

from __future__ import annotations

import base64
import gzip
import json
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.engine import MODEL, Engine, Talk, whole

from kvatlas import prefix_hashes
from kvatlas.sim.server import Publisher
from kvatlas.wire import Stored, encode_batch, keyed_content_hashes

from .deciding import BLOCK, exact, write_tokenizer
from .running import Router, wait_until

IMAGE_TOKEN = 256
TEMPLATE = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
    "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}"
)
BEFORE = "what was said before the picture, and is long enough for some blocks. "
AFTER = "What is in it, and what could be meant by that? Please say it in one word. "


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_tokenizer(tmp_path_factory.mktemp("vision"), TEMPLATE, ("<image>",))
    (folder / "config.json").write_text(json.dumps({"image_token_id": IMAGE_TOKEN}))
    return folder


def image(width: int, height: int, seed: int = 0) -> str:
    """A PNG as far as its size, as a URL of its data."""
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height)
    return "data:image/png;base64," + base64.b64encode(head + bytes([8, 2, 0, 0, 0, seed])).decode()


def part(url: str, **more: object) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}, **more}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


class Vision:
    """vLLM, as far as a chat with images goes: its tokens, its blocks, and how many of them are cached."""

    def __init__(self, engine: Engine, publisher: Publisher) -> None:
        self.cached: list[int] = []
        self.held: set[int] = set()
        self.lies: dict[str, int] = {}  # tokens of images whose heads say another size
        self._publisher = publisher
        engine.answers["/version"] = {"version": "0.33.0"}
        engine.behaviour = self.act

    async def act(self, talk: Talk) -> None:
        body = json.loads(talk.request.body if talk.request.body[:1] == b"{" else gzip.decompress(talk.request.body))
        tokens: list[int] = []
        runs: list[tuple[int, int, str]] = []
        for message in body["messages"]:
            content = message["content"]
            for each in [text(content)] if isinstance(content, str) else content:
                if each["type"] == "text":
                    tokens += each["text"].encode()
                    continue
                url = each["image_url"]["url"]
                raw = base64.b64decode(url.partition(",")[2]) if url.startswith("data:") else b""
                width, height = struct.unpack(">II", raw[16:24]) if raw else (60, 60)
                settings = body.get("mm_processor_kwargs")
                name = each.get("uuid") if settings is None else None
                length = self.lies.get(url) or max(1, width * height // 100)
                runs.append((len(tokens), length, name or f"own of {url} {settings}"))
                tokens += [IMAGE_TOKEN] * length
        full = len(tokens) // BLOCK
        keys = [
            [
                (name, at - block * BLOCK)
                for at, length, name in runs
                if at < (block + 1) * BLOCK and at + length > block * BLOCK
            ]
            for block in range(full)
        ]
        names = prefix_hashes(keyed_content_hashes(tokens[: full * BLOCK], BLOCK, keys)).tolist()
        usable = names[: (len(tokens) - 1) // BLOCK]
        cached = next((at for at, name in enumerate(usable) if name not in self.held), len(usable)) * BLOCK
        self.cached.append(cached)
        new = next((at for at, name in enumerate(names) if name not in self.held), len(names))
        if names[new:]:
            self.held.update(names)
            parent = names[new - 1] if new else None
            own = [of or None for of in keys[new:]]
            event = Stored(names[new:], parent, tokens[new * BLOCK : full * BLOCK], BLOCK, extra_keys=own)
            self._publisher.publish(encode_batch([event], timestamp=time.time()))
        await whole(prompt=len(tokens), cached=cached)(talk)


def chat(*contents: object, **more: object) -> dict[str, Any]:
    roles = ["user", "assistant"]
    messages = [{"role": roles[at % 2], "content": content} for at, content in enumerate(contents)]
    return {"model": MODEL, "messages": messages, "max_tokens": 1, **more}


def uuids(engine: Engine) -> list[object]:
    """The uuid of each image of the last request."""
    contents = [message["content"] for message in engine.last.json["messages"]]
    return [
        one.get("uuid") for content in contents if isinstance(content, list) for one in content if "text" not in one
    ]


def wait_named(router: Router) -> None:
    """Returns when the engine's version is known."""
    asked = chat([part(image(1, 1))])
    wait_until(lambda: "images" in router.ask(asked, path="/explain").json, "the engine takes names")


def is_trusted(router: Router, body: dict[str, Any]) -> bool:
    """True if what an engine is known to hold of a prompt counts."""
    explained = router.ask(body, path="/explain").json
    (candidate,) = explained["candidates"]
    usable = (explained["tokens"] - 1) // BLOCK * BLOCK
    return bool(candidate["cached_tokens"] >= min(candidate["held_tokens"]["device"], usable))


def cached(router: Router, vision: Vision, body: dict[str, Any]) -> tuple[int, int]:
    """Tokens of a prompt that were expected to be cached, and those that were."""
    wait_until(lambda: router.metric("kvatlas_index_blocks") == len(vision.held), "all is known")
    wait_until(lambda: router.in_flight() == 0, "what the engine has counted is known")
    wait_until(lambda: is_trusted(router, body), "the engine is trusted")
    answer = router.ask(body)
    assert answer.status == 200
    return int(answer.headers["x-kvatlas-cached-tokens"]), vision.cached[-1]


def test_what_follows_an_image_is_found(engine: Engine, tokenizer: Path) -> None:
    with Publisher() as publisher:
        flags = exact(tokenizer, (engine, publisher))
        vision = Vision(engine, publisher)
        with Router(engine, flags=flags) as router:
            router.wait_followed()
            wait_named(router)
            first = [text(BEFORE), part(image(90, 60)), text(AFTER)]
            assert cached(router, vision, chat(first)) == (0, 0)
            (name,) = uuids(engine)
            assert str(name).startswith("kvatlas-")
            # Each turn goes on from the one before. New images are of sizes that are known, or not.
            second, third = [part(image(90, 60, 1)), text("and this? " * 5)], [part(image(50, 80)), text("this? " * 9)]
            turns = [
                first,
                "a cat " * 7,
                "why? " * 9,
                "fur " * 9,
                second,
                "a dog",
                third,
                "none",
                "sure? " * 9,
                "yes",
                "so",
            ]
            beyond = 0
            for count in range(1, len(turns) + 1, 2):
                said, was = cached(router, vision, chat(*turns[:count]))
                assert said == was, turns[:count]
                beyond = max(beyond, was)
            assert beyond > len(BEFORE) + 2 * 54 + 40
            # Another image of the same size at the same place is another prompt.
            other = [text(BEFORE), part(image(90, 60, 7)), text(AFTER)]
            assert cached(router, vision, chat(other)) == (len(BEFORE) // BLOCK * BLOCK,) * 2
            # Two that touch, and one twice.
            pair = [part(image(90, 60)), part(image(90, 60, 1)), part(image(90, 60)), text(AFTER)]
            assert cached(router, vision, chat(pair)) == (0, 0)
            said, was = cached(router, vision, chat(pair, "so", "then " * 9))
            assert said == was > 3 * 54
            explained = router.ask(chat(first), path="/explain").json
            assert explained["images"] == [{"tokens": 54}]
            assert explained["tokens"] == len(BEFORE) + 54 + len(AFTER)


def test_all_else_of_the_body_stays_as_it_is(engine: Engine, tokenizer: Path) -> None:
    url = image(20, 20)
    first, mine = f'{{ "image_url": "{url}", "type":"input_image"}}', f'{{"uuid":"mine","image_url":{{"url":"{url}"}}}}'
    words = '{"type":"text","text":"\\u00e9 1.50"}'
    body = f'{{"messages" : [{{"role":"user","content":[ {first},{words},{mine}]}}],"n": 1, "model":"{MODEL}"}}'
    engine.answers["/version"] = {"version": "0.11.0"}
    with Router(engine, flags=("--no-events", "--tokenizer", str(tokenizer))) as router:
        wait_named(router)
        assert router.ask(body.encode()).status == 200
        ours, own = uuids(engine)
        assert own == "mine"
        got = engine.last.body.decode()
        assert got == body.replace('{ "image_url"', f'{{"uuid":"{ours}", "image_url"', 1)


@pytest.mark.parametrize(
    ("version", "flags"),
    [
        (None, ()),
        ("0.10.2", ()),
        ("0.33.0", ("--image-ids", "off")),
        ("0.33.0", ("--tokenizer", "none")),
        ("0.33.0", ("--policy", "least-loaded")),
    ],
    ids=str,
)
def test_bodies_stay_as_they_are_where_nothing_is_gained(
    engine: Engine, tokenizer: Path, version: str | None, flags: tuple[str, ...]
) -> None:
    if version is not None:
        engine.answers["/version"] = {"version": version}
    body = json.dumps(chat([part(image(20, 20)), text(AFTER)])).encode()
    with Router(engine, flags=("--no-events", "--tokenizer", str(tokenizer), *flags)) as router:
        for _ in range(2):
            assert router.ask(body).status == 200
            assert engine.last.body == body


@pytest.mark.parametrize(
    ("policy", "reads"),
    [
        ("tests.support.own_policies:First", True),
        ("lmetric", True),
        ("dynamo-two-tier", True),
        ("tests.support.own_policies:Blind", False),
        ("sticky-least-loaded", False),
        ("session", False),
    ],
)
def test_prompts_are_read_and_images_named_for_policies_that_look_at_prompts(
    engine: Engine, tokenizer: Path, policy: str, reads: bool
) -> None:
    engine.answers["/version"] = {"version": "0.33.0"}
    with Router(engine, flags=("--no-events", "--tokenizer", str(tokenizer), "--policy", policy)) as router:
        counted = router.ask(chat([text(BEFORE)]), path="/explain").json["tokens"]
        assert (counted == len(BEFORE)) == reads
        if reads:
            wait_named(router)
        assert router.ask(chat([part(image(20, 20)), text(AFTER)])).status == 200
        assert (b"kvatlas-" in engine.last.body) == reads


@pytest.mark.parametrize("api", ["messages", "responses"])
def test_depth_ends_at_images_of_other_apis(engine: Engine, tokenizer: Path, api: str) -> None:
    """vLLM takes no `uuid` from these, so a name would only change their bodies."""
    url = image(20, 20)
    if api == "messages":
        source = {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}
        content: list[dict[str, Any]] = [text(BEFORE), {"type": "image", "source": source}, text(AFTER)]
        asked: dict[str, Any] = {"max_tokens": 1, "messages": [{"role": "user", "content": content}]}
    else:
        content = [{"type": "input_text", "text": BEFORE}, {"type": "input_image", "image_url": url}]
        asked = {"input": [{"role": "user", "content": content}]}
    body = json.dumps({"model": MODEL, **asked}).encode()
    engine.answers["/version"] = {"version": "0.33.0"}
    with Router(engine, flags=("--no-events", "--tokenizer", str(tokenizer))) as router:
        wait_named(router)
        assert router.ask(body, path=f"/v1/{api}").status == 200
        assert engine.last.body == body
        name = "kvatlas_router_prompts_without_tokens_total"
        assert router.metric(name, endpoint=api, reason="image") == 1


def test_addresses_are_named_only_if_they_never_change(engine: Engine, tokenizer: Path) -> None:
    with Publisher() as publisher:
        flags = exact(tokenizer, (engine, publisher))
        vision = Vision(engine, publisher)
        turns = [[text(BEFORE), part("https://a.b/c.png"), text(AFTER)], "a cat", "why? " * 9]
        with Router(engine, flags=flags) as router:
            router.wait_followed()
            wait_named(router)
            before = len(BEFORE) // BLOCK * BLOCK
            assert cached(router, vision, chat(turns[0])) == (0, 0)
            assert uuids(engine) == [None]
            said, was = cached(router, vision, chat(*turns))
            assert said == before < was
        with Router(engine, flags=(*flags, "--image-ids", "addresses")) as router:
            router.wait_followed()
            wait_named(router)
            assert cached(router, vision, chat(turns[0]))[1] == before, "it has a name now"
            said, was = cached(router, vision, chat(*turns))
            assert said == was > before + 36


def test_an_image_that_lies_about_its_size_is_outweighed(engine: Engine, tokenizer: Path) -> None:
    """The head of one image says 90 by 60, but the engine makes another number of tokens of it than of others."""
    with Publisher() as publisher:
        flags = exact(tokenizer, (engine, publisher))
        vision = Vision(engine, publisher)
        vision.lies = {image(90, 60, 99): 7}
        with Router(engine, flags=flags) as router:
            router.wait_followed()
            wait_named(router)

            def lengths(seed: int) -> list[dict[str, int]]:
                wait_until(lambda: router.in_flight() == 0, "what the engine has counted is known")
                images: list[dict[str, int]] = router.ask(asked(seed), path="/explain").json["images"]
                return images

            def asked(seed: int) -> dict[str, Any]:
                return chat([text(BEFORE), part(image(90, 60, seed)), text(AFTER)])

            def shown(*seeds: int) -> None:
                for seed in seeds:
                    assert router.ask(asked(seed)).status == 200
                    wait_until(lambda: router.in_flight() == 0, "what the engine has counted is known")

            shown(99)
            assert lengths(0) == [{"tokens": 7}], "it came first"
            shown(1, 2, 3, 4, 5)
            assert lengths(0) == [{"tokens": 54}]
            shown(99, 99, 99)
            assert lengths(0) == [{"tokens": 54}]
            assert lengths(99) == [{"tokens": 7}]


@pytest.mark.parametrize("how", ["settings", "compressed"])
def test_depth_ends_at_images_that_engines_name_themselves(engine: Engine, tokenizer: Path, how: str) -> None:
    with Publisher() as publisher:
        flags = exact(tokenizer, (engine, publisher))
        vision = Vision(engine, publisher)
        with Router(engine, flags=flags) as router:
            router.wait_followed()
            wait_named(router)
            turns = [[text(BEFORE), part(image(90, 60)), text(AFTER)], "a cat", "why? " * 9]
            for count in (1, 3):
                said, was = cached(router, vision, chat(*turns[:count]))
            assert said == was > len(BEFORE) + 54
            before = len(BEFORE) // BLOCK * BLOCK
            if how == "settings":
                assert cached(router, vision, chat(*turns, mm_processor_kwargs={"do_resize": False})) == (
                    before,
                    before,
                )
                assert uuids(engine) == [None]
                return
            raw = gzip.compress(json.dumps(chat(*turns)).encode())
            answer = router.ask(raw, headers={"content-encoding": "gzip", "content-type": "application/json"})
            assert answer.status == 200
            assert engine.last.body == raw
            assert int(answer.headers["x-kvatlas-cached-tokens"]) == vision.cached[-1] == before
