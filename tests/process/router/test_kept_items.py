"""Files, batches and answers that engines keep: after a restart of the router, who has them is found."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.engine import MODEL, Behaviour, Engine, Talk, hang, reply

from .running import DEADLINE, PLAIN, Router, in_threads

COUNTED = "kvatlas_router_stored_answer_requests_total"
PATHS = {"resp": "/v1/responses", "file": "/v1/files", "batch": "/v1/batches", "video": "/v1/videos"}


class Keeper:
    """An engine with a memory: what is posted is made, and can be asked for afterwards."""

    def __init__(self, name: str) -> None:
        self.engine = Engine()
        self.name = name
        self.kept: dict[str, dict[str, Any]] = {}
        self.wants: str | None = None
        self.engine.behaviour = self.act
        self.engine.answers = Answers(self.engine.answers, self.act)

    def add(self, kind: str) -> str:
        item = f"{kind}-{self.name}-{len(self.kept)}"
        self.kept[f"{PATHS[kind]}/{item}"] = {"id": item, "object": kind}
        return item

    async def act(self, talk: Talk) -> None:
        path = talk.request.route.rstrip("/")
        if self.wants is not None and talk.request.headers.get("authorization") != self.wants:
            await reply("401 Unauthorized", {"error": {"message": "no key"}})(talk)
            return
        for kind, collection in PATHS.items():
            if talk.request.method == "POST" and path == collection:
                asked = json.loads(talk.request.body) if talk.request.body.startswith(b"{") else {}
                needs = [("previous_response_id", "/v1/responses"), ("input_file_id", "/v1/files")]
                if any(name in asked and f"{where}/{asked[name]}" not in self.kept for name, where in needs):
                    break
                await reply("200 OK", self.kept[f"{collection}/{self.add(kind)}"])(talk)
                return
        item = "/".join(path.split("/")[:4])
        if item in self.kept:
            await reply("200 OK", self.kept[item] | {"from": self.name})(talk)
            return
        await reply("404 Not Found", {"error": {"message": f"{self.name} has no {path}"}})(talk)

    def asked(self, path: str) -> int:
        return sum(1 for one in self.engine.received if one.route.startswith(path))


class Answers(dict[str, Any]):
    """Answers of an engine by path; all paths below a collection have the same behaviour."""

    def __init__(self, usual: dict[str, Any], behaviour: Behaviour) -> None:
        super().__init__(usual)
        self.behaviour = behaviour

    def get(self, path: str, default: Any = None) -> Any:
        return self.behaviour if path.startswith(tuple(PATHS.values())) else super().get(path, default)


@pytest.fixture
def keepers() -> Iterator[list[Keeper]]:
    made = [Keeper(f"e{number}") for number in range(4)]
    yield made
    for keeper in made:
        keeper.engine.stop()


def behind(keepers: list[Keeper], *more: str) -> Router:
    return Router(*(keeper.engine for keeper in keepers), flags=(*PLAIN, *more))


def request(
    router: Router, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", router.port, timeout=DEADLINE)
    try:
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"content-type": "application/json", **(headers or {})})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"null")
    finally:
        connection.close()


@pytest.mark.parametrize("kind", PATHS)
def test_what_one_router_made_another_finds(keepers: list[Keeper], kind: str) -> None:
    collection = PATHS[kind]
    with behind(keepers) as before:
        made = [before.call("POST", collection, {"model": MODEL, "input": "a"})[1]["id"] for _ in range(6)]
        for item in made:
            assert before.call("GET", f"{collection}/{item}")[1]["from"] == item.split("-")[1]
        assert before.metric(COUNTED, engine="known") == len(made), "as it was noted"
    assert len({item.split("-")[1] for item in made}) > 1
    with behind(keepers) as after:
        for item in made:
            for rest in ("", "/input_items" if kind == "resp" else "/content", "?limit=1"):
                status, said = after.call("GET", f"{collection}/{item}{rest}")
                assert (status, said["from"]) == (200, item.split("-")[1]), rest
        assert after.metric(COUNTED, engine="found") == len(made)
        assert after.metric(COUNTED, engine="known") == 2 * len(made), "it is asked for once"


@pytest.mark.parametrize(("method", "rest"), [("GET", ""), ("DELETE", ""), ("POST", "/cancel")])
def test_the_first_request_may_be_of_any_kind(keepers: list[Keeper], method: str, rest: str) -> None:
    keeper = keepers[2]
    path = f"/v1/responses/{keeper.add('resp')}"
    with behind(keepers) as router:
        status, said = request(router, method, path + rest)
        assert (status, said["from"]) == (200, "e2")
        assert [one.method for one in keeper.engine.received if one.path == path + rest][-1] == method


@pytest.mark.parametrize(
    ("kind", "path", "field"),
    [("resp", "/v1/responses", "previous_response_id"), ("file", "/v1/batches", "input_file_id")],
)
def test_what_goes_on_from_something_goes_where_that_is(
    keepers: list[Keeper], kind: str, path: str, field: str
) -> None:
    with behind(keepers) as router:
        for keeper in keepers:
            item = keeper.add(kind)
            for _ in range(3):
                status, made = router.call("POST", path, {"model": MODEL, "input": "and?", field: item})
                assert status == 200, made
                assert made["id"].split("-")[1] == keeper.name
        assert router.metric(COUNTED, engine="found") == len(keepers)


def test_the_client_is_known_to_engines_by_its_key(keepers: list[Keeper]) -> None:
    item = keepers[1].add("file")
    for keeper in keepers:
        keeper.wants = "Bearer its-own"
    with behind(keepers) as router:
        path = f"/v1/files/{item}"
        status, said = request(router, "GET", path, headers={"authorization": "Bearer its-own"})
        assert (status, said["from"]) == (200, "e1")


def test_what_nobody_has_is_not_looked_for_at_once_again(keepers: list[Keeper]) -> None:
    with behind(keepers) as router:
        for _ in range(10):
            assert request(router, "GET", "/v1/files/file-x")[0] == 404
        asked = sum(keeper.asked("/v1/files/file-x") for keeper in keepers)
        assert asked == len(keepers) + 10, "once each, and each request at one"
        assert router.metric(COUNTED, engine="unknown") == 1
        assert router.metric(COUNTED, engine="not_asked") == 9


def test_names_that_a_client_makes_up_keep_no_engine_busy(keepers: list[Keeper]) -> None:
    with behind(keepers) as router:
        started = time.monotonic()

        def ask(thread: int) -> None:
            for number in range(50):
                assert request(router, "GET", f"/v1/responses/resp_{thread}_{number}")[0] == 404

        with in_threads(8, ask) as errors:
            pass
        assert not errors, errors
        took = time.monotonic() - started
        searched = router.metric(COUNTED, engine="unknown")
        assert searched <= 40 * (took + 2)
        asked = sum(keeper.asked("/v1/responses") for keeper in keepers)
        assert asked <= 8 * 50 + len(keepers) * searched
        # What there is is found all the same.
        item = keepers[3].add("file")
        time.sleep(1.1)
        assert request(router, "GET", f"/v1/files/{item}")[0] == 200


def test_an_engine_that_says_nothing_holds_no_search_up(keepers: list[Keeper]) -> None:
    item = keepers[0].add("file")

    async def silent(talk: Talk) -> None:
        await hang(talk)

    keepers[1].engine.answers = Answers(keepers[1].engine.answers, silent)
    keepers[1].engine.answers["/health"] = 200
    keepers[2].engine.stop()
    with behind(keepers) as router:
        for _ in range(3):
            assert request(router, "GET", f"/v1/files/{item}")[0] == 200
        # It is asked all the same, and gets nothing else.
        assert request(router, "POST", "/engines/e1/drain", {})[0] == 200
        # Where one engine did not say, it is looked for again.
        for _ in range(2):
            request(router, "DELETE", "/v1/files/file-x")
        assert router.metric(COUNTED, engine="unknown") == 2


@pytest.mark.parametrize("path", ["/v1/files/a%2Fb", "/v1/files/" + "x" * 200, "/v1/files", "/v1/files/"])
def test_what_is_no_name_is_not_looked_for(keepers: list[Keeper], path: str) -> None:
    with behind(keepers) as router:
        request(router, "GET", path)
        assert sum(keeper.asked("/v1/files") for keeper in keepers) == 1
        assert router.metric(COUNTED) == 0
