"""The picker with a service and a router, called as LiteLLM calls it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.support.waiting import until

from kvatlas import Service
from kvatlas.errors import InvalidArgumentError, MissingExtraError, PolicyError
from kvatlas.router import Router, RouterConfig, RouterHttpConfig, RouterSection
from kvatlas.sim.server import Fleet

T = TypeVar("T")
TEXT = "It was a bright cold day in April, and the clocks were striking thirteen. " * 8
MESSAGES = [{"role": "user", "content": TEXT}]

pytestmark = pytest.mark.usefixtures("stand_in")


def deployments(fleet: Fleet) -> list[dict[str, Any]]:
    return [
        {
            "model_name": "m",
            "litellm_params": {"model": "hosted_vllm/sim-model", "api_base": f"{url}/v1"},
            "model_info": {"id": f"deployment-{number}"},
        }
        for number, url in enumerate(fleet.urls)
    ]


def run(use: Callable[[Any], Awaitable[T]], url: str, **settings: Any) -> T:
    """Uses a picker within a loop of its own."""
    from kvatlas.litellm import Picker  # noqa: PLC0415 - with what stands in for LiteLLM

    async def whole() -> T:
        picker = Picker(url, **{"timeout": 20.0, **settings})
        try:
            return await use(picker)
        finally:
            await picker.close()

    return asyncio.run(whole())


async def pick(picker: Any, some: list[dict[str, Any]], call: str = "call", **kwargs: Any) -> list[str]:
    """The ids of the deployments that are left."""
    left = await picker.async_filter_deployments("m", some, MESSAGES, {"litellm_call_id": call, **kwargs})
    return [each["model_info"]["id"] for each in left]


def warm(fleet: Fleet, service: Service, number: int, prompt: str | None = None) -> None:
    """Let an engine compute a prompt, and wait until the service knows."""
    prompt = prompt or TEXT
    fleet[number].complete(prompt)
    with service.client() as client:
        until(lambda: client.query(tokens=list(prompt.encode()), model="sim-model").depth)


def test_a_prompt_goes_where_it_is_cached_and_elsewhere_after_a_failure(
    fleet: Fleet, service: Service, tokenizer: Path
) -> None:
    warm(fleet, service, 2)

    async def use(picker: Any) -> None:
        some = deployments(fleet)
        body = {"model": "m", "prompt": TEXT}
        kwargs: dict[str, Any] = {"proxy_server_request": {"url": "http://p/v1/completions", "body": body}}
        assert await pick(picker, some, **kwargs) == ["deployment-2"]
        headers = await picker.async_post_call_response_headers_hook({"litellm_call_id": "call"}, None, None)
        assert headers["x-kvatlas-worker"] == fleet.urls[2].removeprefix("http://")
        assert int(headers["x-kvatlas-cached-tokens"]) >= len(TEXT) - 16
        second = await pick(picker, some, **kwargs)
        third = await pick(picker, some, **kwargs)
        assert sorted([*second, *third]) == ["deployment-0", "deployment-1"]
        assert len(await pick(picker, some, **kwargs)) == 1  # all have failed: any may try again
        await picker.async_post_call_failure_hook({"litellm_call_id": "call"}, ValueError(), None)
        counts = picker.counts()
        assert (counts["picked"], counts["retries"], counts["core_failed"]) == (4, 2, 4)
        assert await pick(picker, some, "another", **kwargs) == ["deployment-2"]
        # Clients may choose ids: LiteLLM's notes say whether it is another attempt of the same call.
        first, again = {"attempted_retries": 0, "attempted_fallbacks": 0}, {"attempted_retries": 1}
        assert await pick(picker, some, "another", metadata=first, **kwargs) == ["deployment-2"]
        assert await pick(picker, some, "another", metadata=again, **kwargs) != ["deployment-2"]

    run(use, service.url, tokenizers={"sim-model": tokenizer})


def test_an_answer_ends_an_attempt(fleet: Fleet, service: Service, tokenizer: Path) -> None:
    async def use(picker: Any) -> None:
        await pick(picker, deployments(fleet))
        chunks = [1, 2, 3]

        async def answer() -> Any:
            for chunk in chunks:
                yield chunk

        streamed = picker.async_post_call_streaming_iterator_hook(None, answer(), {"litellm_call_id": "call"})
        assert [chunk async for chunk in streamed] == chunks
        usage = {"prompt_tokens": 100, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 32}}
        await picker.async_log_success_event({"litellm_call_id": "call"}, {"usage": usage}, 0, 1)
        counts = picker.counts()
        assert (counts["core_finished"], counts["core_reported_cached"]) == (1, 32)

    run(use, service.url, tokenizers={"sim-model": tokenizer})


def test_a_router_reads_the_whole_request_itself(fleet: Fleet, tokenizer: Path) -> None:
    section = RouterSection(tokenizer=str(tokenizer))
    config = RouterConfig(http=RouterHttpConfig(bind="127.0.0.1:0"), router=section)
    with Router(engines=fleet.urls, config=config) as router:
        router.wait_ready()

        async def use(picker: Any) -> None:
            some = deployments(fleet)
            body = {"model": "m", "messages": MESSAGES, "chat_template_kwargs": {"unused": True}}
            kwargs = {"proxy_server_request": {"url": "http://p/v1/chat/completions", "body": body}}
            (first,) = await pick(picker, some, "one", **kwargs)
            # Nothing is cached yet; the hashes that the router gives say what the engine is about to compute.
            assert await pick(picker, some, "two", **kwargs) == [first]
            assert picker.counts()["picked"] == 2
            engine = fleet[int(first[-1])]
            engine.complete(TEXT)
            body = {"model": "m", "prompt": TEXT}
            kwargs = {"proxy_server_request": {"url": "http://p/v1/completions", "body": body}}
            for number in range(1_000):
                (again,) = await pick(picker, some, f"again-{number}", **kwargs)
                about = await picker.async_post_call_response_headers_hook(
                    {"litellm_call_id": f"again-{number}"}, None, None
                )
                await picker.async_log_success_event({"litellm_call_id": f"again-{number}"}, {}, 0, 1)
                if int(about["x-kvatlas-cached-tokens"]) >= len(TEXT) - 16:
                    break
                await asyncio.sleep(0.02)
            assert again == first

        run(use, router.url)


def test_requests_are_left_to_litellm_while_the_index_is_away(fleet: Fleet, service: Service, tokenizer: Path) -> None:
    async def use(picker: Any) -> None:
        some = deployments(fleet)
        assert len(await pick(picker, some)) == 1
        service.close()
        assert len(await pick(picker, some, "two")) == 3
        # For a moment it is not even asked; an engine that has failed the call is left out all the same.
        last = {"attempted_retries": 1, "model_info": {"id": "deployment-1"}}
        assert await pick(picker, some, "two", metadata=last) == ["deployment-0", "deployment-2"]
        counts = picker.counts()
        assert counts["left_unreachable"] + counts.get("left_away", 0) == 2

    run(use, service.url, tokenizers={"sim-model": tokenizer})


def test_an_index_that_never_answers_costs_a_bounded_time(fleet: Fleet) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:

        async def use(picker: Any) -> None:
            some = deployments(fleet)
            assert await pick(picker, some) == [each["model_info"]["id"] for each in some]
            assert await pick(picker, some, "two") == [each["model_info"]["id"] for each in some]
            assert picker.counts()["left_timeout"] + picker.counts().get("left_away", 0) == 2

        run(use, f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.2)


def test_models_of_others_are_none_of_its_business(fleet: Fleet, service: Service) -> None:
    async def use(picker: Any) -> None:
        others = [
            {"litellm_params": {"model": "openai/gpt"}, "model_info": {"id": "cloud"}},
            {"litellm_params": {"model": "openai/gpt", "api_base": "https://host/v1"}, "model_info": {"id": "else"}},
        ]
        assert await pick(picker, others) == ["cloud", "else"]
        assert await pick(picker, []) == []
        assert picker.counts()["left_not_followed"] == 1
        # The name that the index has for an engine can be given.
        others[0]["model_info"] = {"id": "cloud", "kvatlas_worker": fleet.urls[0].removeprefix("http://")}
        assert len(await pick(picker, others, "two")) == 1

    run(use, service.url)


def test_prompts_that_cannot_be_read_are_placed_by_load(fleet: Fleet, service: Service) -> None:
    async def use(picker: Any) -> None:
        some = deployments(fleet)
        picked = [(await pick(picker, some, f"call-{number}"))[0] for number in range(3)]
        assert sorted(picked) == ["deployment-0", "deployment-1", "deployment-2"]
        assert picker.counts()["by_load_no_tokenizer"] == 3

    run(use, service.url)


def test_what_goes_wrong_inside_fails_no_request(fleet: Fleet, service: Service) -> None:
    async def use(picker: Any) -> None:
        broken = [{**each, "litellm_params": {}} for each in deployments(fleet)]
        broken[0]["model_info"] = {"kvatlas_worker": fleet.urls[0].removeprefix("http://")}
        assert await picker.async_filter_deployments("m", broken, MESSAGES, {}) == broken
        assert picker.counts()["left_error"] == 1

    run(use, service.url)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"timeout": 0}, InvalidArgumentError),
        ({"wait": -1}, InvalidArgumentError),
        ({"url": "nowhere"}, InvalidArgumentError),
        ({"policy": "no-such"}, PolicyError),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], error: type[Exception]) -> None:
    from kvatlas.litellm import Picker  # noqa: PLC0415

    with pytest.raises(error):
        Picker(**settings)


def test_without_litellm_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys  # noqa: PLC0415

    monkeypatch.setitem(sys.modules, "litellm", None)
    monkeypatch.delitem(sys.modules, "kvatlas.litellm.picker", raising=False)
    with pytest.raises(MissingExtraError, match=r"pip install 'litellm\[proxy\]'"):
        from kvatlas.litellm import Picker  # noqa: F401, PLC0415
