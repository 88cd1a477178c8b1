"""Callback of a LiteLLM proxy that narrows a model's deployments to the one of least cost for a request."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvatlas.client import DEFAULT_URL, AsyncClient
from kvatlas.errors import InvalidArgumentError, InvalidTypeError, MissingExtraError
from kvatlas.litellm.asked import AskedPrompt, read
from kvatlas.litellm.lookup import IndexLookup, NoAnswer
from kvatlas.litellm.placing import Placer
from kvatlas.routing import ArrayPolicy
from kvatlas.tokenize import AnyTokenizer, LocalTokenizer

try:
    import litellm
    from litellm.integrations.custom_logger import CustomLogger
except ImportError as error:
    raise MissingExtraError("kvatlas.litellm is for a LiteLLM proxy: pip install 'litellm[proxy]'") from error

_LOG = logging.getLogger("kvatlas.litellm")
_QUIET = 60.0  # seconds between two lines of the log about the same

Deployment = dict[str, Any]


class Picker(CustomLogger):  # type: ignore[misc] # LiteLLM is not installed where types are checked
    """Callback of LiteLLM that picks the deployment whose engine holds most of the prompt, weighed against its load.

    Name an instance in `litellm_settings.callbacks` of the proxy's `config.yaml`. Deployments with the same
    `model_name` are alternatives, each an engine: `api_base` is its address, by which the index identifies it; if it
    has another name in the index, `model_info.kvatlas_worker` gives the name. Health checks, cooldowns and retries
    remain with LiteLLM: the picker chooses among the deployments that those leave, and leaves out those that have
    failed the call already.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        key: str | None = None,
        tokenizers: Mapping[str, str | Path | AnyTokenizer] | None = None,
        timeout: float = 0.5,
        wait: float = 0.0,
        policy: str | ArrayPolicy = "kvatlas",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Create a picker, without sending a request yet.

        Args:
            url: The index: a `kvatlas serve`, or a running `kvatlas router` that follows the same engines.
            key: The index's bearer key.
            tokenizers: The tokenizer of each model, by the engine's name of the model: a directory, a name on the
                Hugging Face Hub, or one of `kvatlas.tokenize`. Not needed if the index is a router's, which tokenizes
                requests itself.
            timeout: Seconds within which the index must answer. If it does not, the request is left to LiteLLM.
            wait: Seconds for which a request may wait in the picker for a busy engine; 0 for no waiting.
            policy: The policy, as in `kvatlas.routing.Router`.
            options: Options of the policy.

        Raises:
            InvalidArgumentError: The URL, the key or a number cannot be used.
            PolicyError: The policy is unknown, or has no option of a given name.
            TokenizerError: A tokenizer cannot be read.
        """
        super().__init__()
        for name, number in (("timeout", timeout), ("wait", wait)):
            if isinstance(number, bool) or not isinstance(number, int | float):
                raise InvalidTypeError(f"{name} must be a number of seconds, got {type(number).__name__}")
        if timeout <= 0 or wait < 0:
            raise InvalidArgumentError("timeout must be above 0 s, and wait 0 s or more", "out_of_range")
        read_tokenizers = {model: _tokenizer(given) for model, given in (tokenizers or {}).items()}
        self._lookup = IndexLookup(AsyncClient(url, key, timeout), read_tokenizers, timeout)
        self._placer = Placer(policy, options, wait)
        self._counts: Counter[str] = Counter()
        self._said: dict[str, float] = {}
        self.url = url

    def counts(self) -> dict[str, int]:
        """The numbers of attempts, by the outcome of their choice.

        Returns:
            dict of str to int: "picked" (by engines' caches), "by_load" with the reason why the prompt could not be
            looked up, "left" (to LiteLLM) with the reason, "retries" (attempts that avoided an engine which had failed
            the call), and the counts of `kvatlas.routing.Router` with the prefix "core_".
        """
        return {**self._counts, **{f"core_{name}": count for name, count in self._placer.counts().items()}}

    async def close(self) -> None:
        """Close the connections to the index."""
        await self._lookup.close()

    async def async_filter_deployments(
        self,
        model: str,
        healthy_deployments: list[Deployment],
        messages: list[Any] | None,
        request_kwargs: dict[str, Any] | None = None,
        parent_otel_span: Any = None,
    ) -> list[Deployment]:
        """The deployments of the chosen engine, for one attempt of a call. A hook of LiteLLM."""
        try:
            return await self._pick(healthy_deployments, messages, request_kwargs or {})
        except Exception:  # noqa: BLE001 - what is wrong here must not fail a request
            self._counts["left_error"] += 1
            self._say("error", "the choice failed, and was left to LiteLLM", exc_info=True)
            return healthy_deployments

    async def _pick(
        self, deployments: list[Deployment], messages: Sequence[Any] | None, kwargs: Mapping[str, Any]
    ) -> list[Deployment]:
        call_id = _text(kwargs.get("litellm_call_id"))
        if not deployments:
            return deployments
        names = await self._lookup.names()
        if isinstance(names, NoAnswer):
            self._leave(names)
            return deployments
        engines: dict[str, list[Deployment]] = {}
        for each in deployments:
            engines.setdefault(_worker(each, names.name_of), []).append(each)
        if not engines.keys() & names.workers:
            self._counts["left_not_followed"] += 1
            followed = ", ".join(sorted(names.workers)[:5]) or "none"
            here = ", ".join(sorted(engines)[:5])
            words = "%s follows none of the engines %s, but %s: set model_info.kvatlas_worker if these are theirs"
            self._say(f"not_followed {here}", words, self.url, here, followed)
            return deployments
        attempts = _attempts(kwargs)
        if attempts == 0:
            self._placer.begin(call_id)
        last = {_id(each): name for name, some in engines.items() for each in some}.get(_last(kwargs, attempts))
        open_to_it = self._placer.untried(call_id, list(engines), last)
        if len(open_to_it) < len(engines):
            self._counts["retries"] += 1
        left = [each for name in open_to_it for each in engines[name]]
        asked = _asked(left[0], messages, kwargs)
        found = await self._lookup.find(asked)
        if isinstance(found, NoAnswer):
            self._leave(found)
            return left
        worker, why = await self._placer.place(call_id, open_to_it, asked, found)
        if worker is None:
            self._counts[f"left_{why}"] += 1
            return left
        self._counts["picked" if found.unread is None else f"by_load_{found.unread}"] += 1
        if found.unread is not None:
            words = "prompts for %s are placed by load (%s)"
            self._say(f"unread {asked.model} {found.unread}", words, asked.model, found.unread)
        return engines[worker]

    def _leave(self, why: NoAnswer) -> None:
        self._counts[f"left_{why.reason}"] += 1
        self._say("no answer", "requests are left to LiteLLM: %s", why.words)

    def _say(self, subject: str, words: str, *values: object, exc_info: bool = False) -> None:
        """Write a line to the log, at most once a minute for each subject."""
        now = time.monotonic()
        if now - self._said.get(subject, -_QUIET) >= _QUIET:
            if len(self._said) > 1_000:
                self._said.clear()
            self._said[subject] = now
            _LOG.warning(words, *values, exc_info=exc_info)

    async def async_post_call_streaming_iterator_hook(
        self, user_api_key_dict: Any, response: Any, request_data: dict[str, Any]
    ) -> AsyncGenerator[Any, None]:
        """The chunks of an answer, unchanged; the first reports the first token. A hook of LiteLLM."""
        is_first = True
        async for chunk in response:
            if is_first:
                is_first = False
                self._placer.first_token(_text(request_data.get("litellm_call_id")))
            yield chunk

    async def async_post_call_response_headers_hook(
        self,
        data: dict[str, Any],
        user_api_key_dict: Any,
        response: Any,
        request_headers: dict[str, str] | None = None,
        litellm_call_info: dict[str, Any] | None = None,
    ) -> dict[str, str] | None:
        """The headers about the decision, named like the router's. A hook of LiteLLM."""
        shown = self._placer.shown(_text(data.get("litellm_call_id")))
        if shown is None:
            return None
        worker, cached, why = shown
        return {"x-kvatlas-worker": worker, "x-kvatlas-cached-tokens": str(cached), "x-kvatlas-reason": why}

    async def async_log_success_event(
        self, kwargs: dict[str, Any], response_obj: Any, start_time: Any, end_time: Any
    ) -> None:
        """Record that a call has ended. A hook of LiteLLM."""
        cached, output = _usage(response_obj)
        self._placer.finish(_text(kwargs.get("litellm_call_id")), cached, output)

    async def async_post_call_failure_hook(
        self,
        request_data: dict[str, Any],
        original_exception: Exception,
        user_api_key_dict: Any,
        traceback_str: str | None = None,
    ) -> None:
        """Record that a call has failed after its last attempt. A hook of LiteLLM."""
        self._placer.fail(_text(request_data.get("litellm_call_id")))


def _tokenizer(given: str | Path | AnyTokenizer) -> AnyTokenizer:
    if not isinstance(given, str | Path):
        return given
    return LocalTokenizer(given) if Path(given).exists() else LocalTokenizer.from_hub(str(given))


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _id(deployment: Deployment) -> str | None:
    return _text((deployment.get("model_info") or {}).get("id"))


def _worker(deployment: Deployment, name_of: Any) -> str:
    """The index's name of a deployment's engine."""
    about = deployment.get("model_info") or {}
    base = _text((deployment.get("litellm_params") or {}).get("api_base"))
    named = _text(about.get("kvatlas_worker"))
    return named or (name_of(base) if base else str(about.get("id")))


def _noted(kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The metadata that LiteLLM keeps with a call."""
    found = [kwargs.get(name) for name in ("metadata", "litellm_metadata")]
    return next((each for each in found if isinstance(each, Mapping) and "attempted_retries" in each), {})


def _attempts(kwargs: Mapping[str, Any]) -> int | None:
    """The number of earlier attempts of a call; None if LiteLLM does not report it."""
    about = _noted(kwargs)
    numbers = [about.get(name, 0) for name in ("attempted_retries", "attempted_fallbacks")]
    return sum(numbers) if about and all(isinstance(each, int) for each in numbers) else None


def _last(kwargs: Mapping[str, Any], attempts: int | None) -> str | None:
    """The id of the deployment at which the call's last attempt failed, from LiteLLM's metadata."""
    return _id(dict(_noted(kwargs))) if attempts else None


def _asked(deployment: Deployment, messages: Sequence[Any] | None, kwargs: Mapping[str, Any]) -> AskedPrompt:
    about = deployment.get("litellm_params") or {}
    model, _, _, _ = litellm.get_llm_provider(
        model=about["model"], custom_llm_provider=about.get("custom_llm_provider"), api_base=about.get("api_base")
    )
    return read(model, messages, kwargs)


def _usage(answer: Any) -> tuple[int | None, int | None]:
    """The numbers of cached and of generated tokens that an answer reports; None if not reported."""
    usage = _field(answer, "usage")
    cached = _field(_field(usage, "prompt_tokens_details"), "cached_tokens")
    if cached is None:
        cached = _field(_field(usage, "input_tokens_details"), "cached_tokens")
    if cached is None:
        cached = _field(usage, "cache_read_input_tokens")
    output = _field(usage, "completion_tokens")
    if output is None:
        output = _field(usage, "output_tokens")
    return tuple(each if isinstance(each, int) else None for each in (cached, output))  # type: ignore[return-value]


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
