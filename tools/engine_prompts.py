"""Make `crates/prompt/tests/data/agents.json` again: what the engines' own code gives to the tokenizer for each body.

The file has templates, bodies of requests, and the text that vLLM and SGLang make of each body with each template (null
where they refuse it). To add a body or a template, add it there, name it under `expected`, and run this. Bodies of full
size have `<<words SEED COUNT>>` in place of long texts, and a number in place of what engines make of them.

Only the modules that turn a request into a chat are loaded, from unpacked wheels; everything else of the engines, and
torch, is stubbed. Needs `transformers`, `openai`, `fastapi`, `pydantic`, `msgspec`, `orjson`, `regex` and
`partial-json-parser`, but neither the engine installed nor a GPU:

    pip download --no-deps vllm==0.33.0 sglang==0.5.23 && unzip each into a folder of its own
    python tools/engine_prompts.py VLLM_FOLDER SGLANG_FOLDER
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import logging
import re
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "crates/prompt/tests/data/agents.json"
TEXT = "the file tool must read `path` before it can write, then returns lines; never guess, ask a user 日本 naïve"
WORDS = TEXT.split()
STUBBED = ("torch", "openai_harmony", "xgrammar", "jsonschema", "pybase64", "triton", "zmq")
VLLM = [
    "vllm." + name
    for name in (
        "entrypoints.anthropic.protocol",
        "entrypoints.anthropic.serving",
        "entrypoints.generate.base.protocol",
        "entrypoints.openai.chat_completion.protocol",
        "entrypoints.openai.responses.protocol",
        "entrypoints.openai.responses.utils",
        "entrypoints.serve.engine.protocol",
        "exceptions",
        "renderers.chat_utils",
        "renderers.chat_utils.chat_message",
        "renderers.chat_utils.content_parser",
        "renderers.chat_utils.item_tracker",
        "renderers.chat_utils.tool_call",
        "renderers.chat_utils.types",
        "renderers.hf",
        "renderers.params",
        "tool_parsers.utils",
        "utils.collection_utils",
    )
]
SGLANG = [
    "sglang.srt." + name
    for name in (
        "entrypoints.anthropic.protocol",
        "entrypoints.anthropic.serving",
        "entrypoints.openai.protocol",
        "entrypoints.openai.responses_adapters",
        "entrypoints.openai.serving_chat",
        "entrypoints.openai.serving_responses",
        "parser.jinja_template_utils",
        "parser.template_detection",
    )
]
Render = Callable[[str, dict[str, Any], str], str]


class _Stub(type):
    """A class that is whatever it is taken for: a base, a decorator, a type, a value."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(cls, name, _stub(name))
        return getattr(cls, name)

    def __getitem__(cls, _item: object) -> Any:
        return cls

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if not cls.__dict__.get("_is_stub"):
            return super().__call__(*args, **kwargs)
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else _stub(cls.__name__)


def _stub(name: str) -> Any:
    def schema(_cls: object, _source: object, _handler: object) -> Any:
        return importlib.import_module("pydantic_core").core_schema.any_schema()

    return _Stub(name, (), {"_is_stub": True, "__get_pydantic_core_schema__": classmethod(schema)})


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, _stub(name))
        return self.__dict__[name]


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads these modules of a package from a folder, and stubs all others."""

    def __init__(self, folder: Path, package: str, modules: Sequence[str]) -> None:
        self._folder, self._package, self._modules = folder, package, modules

    def find_spec(self, fullname: str, _path: object, _target: object = None) -> Any:
        top = fullname.partition(".")[0]
        if fullname in self._modules:
            base = self._folder.joinpath(*fullname.split("."))
            file = base.with_suffix(".py")
            if file.is_file():
                return importlib.util.spec_from_file_location(fullname, file)
            inside = [str(base)]
            return importlib.util.spec_from_file_location(
                fullname, base / "__init__.py", submodule_search_locations=inside
            )
        if top == self._package or top in STUBBED:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = _Module(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class _Log(logging.Logger):
    def warning_once(self, *_args: object) -> None:
        pass

    info_once = debug_once = warning_once


def _jinja(conversation: Any, tools: Any, template: str, **variables: Any) -> str:
    render = importlib.import_module("transformers.utils.chat_template_utils").render_jinja_template
    texts, _ = render(conversations=[conversation], tools=tools, chat_template=template, **variables)
    return str(texts[0])


def words(seed: int, count: int) -> str:
    """`count` words that follow from the seed, in lines, as in a JSON string."""
    made: list[str] = []
    state = seed
    for at in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        word = WORDS[(state >> 33) % len(WORDS)]
        made.append(word + ("\\n" if at % 14 == 13 else " "))
    return "".join(made)


def number(text: str) -> str:
    """The FNV-1a hash of a text, and its length in bytes."""
    state = 0xCBF29CE484222325
    data = text.encode()
    for byte in data:
        state = (state ^ byte) * 0x100000001B3 % 2**64
    return f"{state:016x} {len(data)}"


def _constant(value: Any) -> Callable[[Any], Any]:
    return lambda _self: value


def vllm(folder: Path) -> Render:
    """The way from a request to a text in vLLM."""
    sys.meta_path.insert(0, _Finder(folder, "vllm", VLLM))
    load = importlib.import_module
    load("vllm.envs").VLLM_MAX_STOP_STRINGS = 100  # type: ignore[attr-defined]
    load("vllm.utils").random_uuid = lambda: "0" * 32  # type: ignore[attr-defined]
    load("vllm.logger").init_logger = lambda name: _Log(name, 50)  # type: ignore[attr-defined]
    renderers, params = load("vllm.renderers"), load("vllm.renderers.params")
    for name in vars(params):
        if not name.startswith("__"):
            setattr(renderers, name, getattr(params, name))
    serving, anthropic = load("vllm.entrypoints.anthropic.serving"), load("vllm.entrypoints.anthropic.protocol")
    chats = load("vllm.entrypoints.openai.chat_completion.protocol")
    responses, utils = (load(f"vllm.entrypoints.openai.responses.{name}") for name in ("protocol", "utils"))
    parse, hf = load("vllm.renderers.chat_utils.chat_message").parse_chat_messages, load("vllm.renderers.hf")
    serving.extract_prompt_components = (  # type: ignore[attr-defined]
        lambda _config, text: types.SimpleNamespace(token_ids=None, text=text)
    )
    model = types.SimpleNamespace(enable_prompt_embeds=False, multimodal_config=None)

    def finished(messages: Any, tools: Any, params: Any, template: str) -> str:
        form = hf._detect_content_format(template, default="string")  # noqa: SLF001
        conversation = parse(list(messages), model, form)[0]
        variables = {name: value for name, value in params.chat_template_kwargs.items() if value is not None}
        variables.pop("chat_template", None)
        return _jinja(conversation, tools, template, **variables)

    def chat(request: Any, template: str) -> str:
        tools = None if request.tools is None else [tool.model_dump() for tool in request.tools]
        return finished(request.messages, tools, request.build_chat_params(None, "auto"), template)

    def render(endpoint: str, body: dict[str, Any], template: str) -> str:
        class Renderer:
            model_config = None

            async def render_chat(self, request: Any) -> Any:
                return None, (chat(request, template),)

        if endpoint == "messages":
            request = anthropic.AnthropicMessagesRequest(**{"max_tokens": 9, **body})
            effort = asyncio.run(serving.DisabledThinkingEffortResolver(Renderer()).resolve_for(request))
            own = serving.AnthropicServingMessages
            merges = own._detect_merge_inline_system(template)  # noqa: SLF001
            made = own.to_chat_completion_request(request, merge_inline_system=merges, disabled_thinking_effort=effort)
            return chat(made, template)
        if endpoint == "responses":
            request = responses.ResponsesRequest(**body)
            tools = utils.construct_tool_dicts(request.tools, request.tool_choice)
            messages = utils.construct_input_messages(
                request_instructions=request.instructions, request_input=request.input
            )
            return finished(messages, tools, request.build_chat_params(None, "auto"), template)
        return chat(chats.ChatCompletionRequest(**body), template)

    return render


def sglang(folder: Path) -> Render:
    """The way from a request to a text in SGLang, started with a parser of reasoning and none of tool calls."""
    sys.meta_path.insert(0, _Finder(folder, "sglang", SGLANG))
    srt = "sglang.srt."
    load = importlib.import_module
    own = srt + "entrypoints."
    protocol, chats, responses = (
        load(f"{own}openai.{name}") for name in ("protocol", "serving_chat", "serving_responses")
    )
    anthropic, messages = load(own + "anthropic.serving"), load(own + "anthropic.protocol")
    detection, content = load(srt + "parser.template_detection"), load(srt + "parser.jinja_template_utils")
    chats.normalize_hunyuan_reasoning_effort = lambda *_: None  # type: ignore[attr-defined]
    chats.MessageProcessingResult = types.SimpleNamespace  # type: ignore[attr-defined]

    def server(kind: Any, template: str) -> Any:
        def rendered(messages: Any, *, tools: Any, template_kwargs: Any, **more: Any) -> Any:
            begins = more["add_generation_prompt"]
            return _jinja(messages, tools, template, add_generation_prompt=begins, **template_kwargs), None

        marks = {"think_start_token": "<think>", "think_end_token": "</think>", "think_start_self_label": ""}
        space = types.SimpleNamespace
        fields: dict[str, Any] = {
            **dict.fromkeys(("is_minimax_m3", "is_gpt_oss", "is_gemma4", "_tokenizer_auto_adds_specials"), False),
            **dict.fromkeys(("default_chat_template_kwargs", "tool_call_parser", "chat_encoding_spec"), None),
            "_encoding_adapter": None,
            "_prompt_text_round_trip_is_lossy": False,
            "reasoning_parser": "qwen3",
            "msg_store": {},
            "supports_inline_system": detection.detect_inline_system_support(template),
            "_reasoning_detector": space(**marks, reasoning_default="on"),
            "_patch_reasoning_skip_special_tokens": lambda _request: None,
            "_get_reasoning_from_request": lambda _request: True,
            "_effective_tools": lambda request: request.tools,
            "_takes_turn_grammar": lambda *_args, **_more: False,
            "_encode_messages": lambda *_args, **_more: None,
            "_requires_response_template_detokenization": lambda _request: False,
            "supports_native_reasoning_history": lambda: False,
            "_render_and_encode_chat_template": rendered,
            "_validate_media_content": lambda _request: None,
            "_get_reasoning_toggle_param": lambda: next(
                (name for name in ("enable_thinking", "thinking") if name in template), None
            ),
            "_engine_prompt": lambda prompt, _is_multimodal: (None, prompt.prompt_ids),
            "tokenizer_manager": space(model_config=space(is_multimodal=False), served_model_name="m", tokenizer=None),
            "template_manager": space(
                chat_template_name=None,
                jinja_template_content_format=content.detect_jinja_template_content_format(template),
                jinja_template_may_reorder_tool_results=False,
                reasoning_config=None,
                python_chat_template=None,
            ),
        }
        members: dict[str, Any] = {name: property(_constant(value)) for name, value in fields.items()}
        return object.__new__(type("Server", (kind,), {**members, "__setattr__": lambda *_args: None}))

    def render(endpoint: str, body: dict[str, Any], template: str) -> str:
        if endpoint == "responses":
            made = server(responses.OpenAIServingResponses, template)
            return str(asyncio.run(made._make_request(protocol.ResponsesRequest(**body), None, None))[3].prompt_ids)  # noqa: SLF001
        chat = server(chats.OpenAIServingChat, template)
        if endpoint == "messages":
            request = messages.AnthropicMessagesRequest(**{"max_tokens": 9, **body})
            request = anthropic.AnthropicServing(chat)._convert_to_chat_completion_request(request)  # noqa: SLF001
        else:
            request = protocol.ChatCompletionRequest(**body)
        return str(chat._process_messages(request, False).prompt_ids)  # noqa: SLF001

    return render


def main() -> None:
    """Write the file anew."""
    golden = json.loads(FILE.read_text(encoding="utf-8"))
    engines = {"vllm": vllm(Path(sys.argv[1])), "sglang": sglang(Path(sys.argv[2]))}
    for template, bodies in golden["expected"].items():
        for name, expected in bodies.items():
            case = golden["bodies"][name]
            for engine, render in engines.items():
                try:
                    raw = json.dumps({"model": "m", **case["body"]}, ensure_ascii=False)
                    grown = re.sub(r"<<words (\d+) (\d+)>>", lambda match: words(int(match[1]), int(match[2])), raw)
                    text = render(case["endpoint"], json.loads(grown), golden["templates"][template])
                    expected[engine] = text if grown == raw else number(text)
                except Exception as error:  # noqa: BLE001 - engines refuse in any way
                    expected[engine] = None
                    print(f"{engine} refuses {name} ({template}): {str(error)[:200]!r}", file=sys.stderr)
    FILE.write_text(json.dumps(golden, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
