"""A chat template rendered as transformers renders it, without importing transformers.

For counting tokens in worker processes, which start in a fraction of a second this way. The text is the same,
character for character; tests/data/compress/test_tokens.py compares the two. Nothing is escaped: the count is
the one a trainer gets that applies the template itself. Prompts for a model are rendered by `template`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from hermes.core import JSONObject
from hermes.errors import ProviderError

if TYPE_CHECKING:
    from jinja2 import Template

_REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
"""Names under which templates read the assistant's reasoning; a message has it under one of them."""


class TemplateRefusalError(ProviderError):
    """The chat template does not accept this conversation; trying again cannot help."""


class ChatTemplate:
    """One compiled template. The sandbox keeps a template from reaching anything but its arguments."""

    def __init__(self, source: str, special: Mapping[str, str]) -> None:
        """`special`: the tokenizer's special tokens by their names in templates (`bos_token` …)."""
        from jinja2 import TemplateError

        try:
            self._template = _compile(source)
        except (TemplateError, RecursionError, ValueError) as error:
            raise TemplateRefusalError(f"the chat template cannot be read: {error}") from error
        self._special = dict(special)

    def render(self, chat: Sequence[JSONObject], tools: Sequence[JSONObject] | None = None) -> str:
        """The whole conversation as one text, without a generation prompt."""
        from jinja2 import TemplateError

        try:
            return self._template.render(
                messages=[_with_reasoning_aliases(message) for message in chat],
                tools=list(tools) if tools else None,
                documents=None,
                add_generation_prompt=False,
                **self._special,
            )
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise TemplateRefusalError(f"the chat template rejects the conversation: {error}") from error


def _with_reasoning_aliases(message: JSONObject) -> JSONObject:
    reasoning = next((message[name] for name in _REASONING_FIELDS if message.get(name) is not None), None)
    if reasoning is None:
        return message
    return {**dict.fromkeys(_REASONING_FIELDS, reasoning), **message}


def _compile(source: str) -> Template:
    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationTag(Extension):
        """`{% generation %}` marks the assistant's text for loss masks; it does not change the text."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.Scope(body, lineno=line)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(source)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)
