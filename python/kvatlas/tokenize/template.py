"""Chat templates in Jinja with the extensions of Hugging Face's transformers, as engines render them."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvatlas.errors import InvalidArgumentError, MissingExtraError, TokenizerError
from kvatlas.tokenize.messages import prepare

if TYPE_CHECKING:
    from jinja2 import nodes
    from jinja2.sandbox import ImmutableSandboxedEnvironment


class ChatTemplate:
    """Compiled chat template, which renders messages as a prompt.

    Attributes:
        as_parts: True if the template expects the content of a message as a list of parts, because it loops over the
            content; False if it expects a string.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str] | None = None) -> None:
        """Compile a chat template.

        Args:
            source: Source text of the template.
            special_tokens: Special tokens by their names in templates: `bos_token`, `eos_token` and so on.

        Raises:
            MissingExtraError: The Python package jinja2 is not installed.
            TokenizerError: The source is not a valid template (code "bad_chat_template").
        """
        environment = _environment()
        from jinja2 import TemplateError  # noqa: PLC0415 - an extra; `_environment` has said so if it is missing

        try:
            self.as_parts = _loops_over_content(environment.parse(source))
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise TokenizerError(f"the chat template is not valid Jinja: {error}", "bad_chat_template") from error
        self._refusal = TemplateError
        self._special_tokens = dict(special_tokens or {})

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Render a chat as the text of a prompt.

        Args:
            messages: The messages, in the format of a chat request.
            tools: The tools offered to the model, in the format of a chat request.
            documents: Documents, for templates that use them.
            add_generation_prompt: True to end with the beginning of the assistant's answer.
            template_kwargs: More variables for the template, as in `chat_template_kwargs` of requests.

        Raises:
            InvalidTypeError: The messages are not a list of objects.
            InvalidArgumentError: The template or kvatlas refuses the messages (code "invalid_messages").
        """
        variables = {**self._special_tokens, **(template_kwargs or {})}
        prepared = prepare(messages, as_parts=self.as_parts)
        try:
            return self._template.render(
                messages=prepared,
                tools=tools,
                documents=documents,
                add_generation_prompt=add_generation_prompt,
                **variables,
            )
        except self._refusal as error:
            raise InvalidArgumentError(
                f"the chat template refuses the messages: {error}", "invalid_messages"
            ) from error
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            words = f"the chat template fails for the messages: {type(error).__name__}: {error}"
            raise InvalidArgumentError(words, "invalid_messages") from error


def _environment() -> ImmutableSandboxedEnvironment:
    try:
        import jinja2  # noqa: PLC0415 - an extra
        from jinja2.ext import Extension, loopcontrols  # noqa: PLC0415
        from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("chat templates need the package jinja2: pip install 'kvatlas[tokenizer]'") from error

    class Generation(Extension):
        """Jinja tag `{% generation %}`, with which training marks the assistant's text.

        Its content is rendered unchanged.
        """

        tags = {"generation"}  # noqa: RUF012 - Jinja's own way

        def parse(self, parser: Any) -> nodes.Node | list[nodes.Node]:
            next(parser.stream)
            body: list[nodes.Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return body

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes what is special in HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(form: str) -> str:
    return dt.datetime.now().strftime(form)  # noqa: DTZ005 - the day where the engine is, as transformers has it


# Whether a template wants strings or parts


def _loops_over_content(template: nodes.Template) -> bool:
    """True if a template loops over the content of a message, directly or through a variable."""
    from jinja2 import nodes  # noqa: PLC0415 - an extra

    lists = _names_for(template, {"messages"}, None)
    messages = {
        loop.target.name
        for loop in template.find_all(nodes.For)
        if isinstance(loop.target, nodes.Name) and _reads(loop.iter, lists, None)
    }
    contents = _names_for(template, set(), messages)
    return any(
        _reads(loop.iter, contents, None) or _reads(loop.iter, messages, "content")
        for loop in template.find_all(nodes.For)
    )


def _names_for(template: nodes.Template, names: set[str], owners: set[str] | None) -> set[str]:
    """Find the variables in `names`, and those assigned from one of them or from the content of one of `owners`."""
    from jinja2 import nodes  # noqa: PLC0415 - an extra

    found = set(names)
    while True:
        more = {
            target.name
            for assigned in template.find_all(nodes.Assign)
            for target in _targets(assigned)
            if _reads(assigned.node, found, None) or (owners and _reads(assigned.node, owners, "content"))
        }
        if more <= found:
            return found
        found |= more


def _targets(assigned: nodes.Assign) -> Iterator[nodes.Name]:
    from jinja2 import nodes  # noqa: PLC0415 - an extra

    if isinstance(assigned.target, nodes.Name):
        yield assigned.target


def _reads(node: nodes.Node, names: set[str], key: str | None) -> bool:
    """True if an expression is a variable in `names`, or the value of `key` in one, possibly filtered or sliced."""
    from jinja2 import nodes  # noqa: PLC0415 - an extra

    if isinstance(node, nodes.Filter | nodes.Test):
        return node.node is not None and _reads(node.node, names, key)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        return _reads(node.node, names, key)
    if key is None:
        return isinstance(node, nodes.Name) and node.name in names
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == key and _reads(node.node, names, None)
    return isinstance(node, nodes.Getattr) and node.attr == key and _reads(node.node, names, None)
