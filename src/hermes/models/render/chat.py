"""Renders a chat request for one model: its tokenizer's template, and how that template is given tools.

With the `hermes` parser, tools are offered and their results returned as text, in the format that the rest of
Hermes prompts, parses and trains with. Any other parser reads a model's native format, so the model's
template has to offer the tools; a template that cannot is an error when the renderer is created.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hermes.core import JSONObject, Message, Role
from hermes.errors import ConfigError, ProviderError
from hermes.models.base import ChatRequest
from hermes.models.parsers import get_parser
from hermes.models.render.escape import Rendered
from hermes.models.render.prompting import TEXT_TOOLS_PARSER, assistant_text, with_tools
from hermes.models.render.template import render, result_role

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from hermes.models.parsers import ToolCallParser

_PROBE_TOOL: JSONObject = {
    "name": "probe_tool",
    "description": "Probes.",
    "parameters": {"type": "object", "properties": {"x": {"type": "integer", "description": "A number."}}},
}


@dataclass(frozen=True)
class ChatRenderer:
    """The chat format of one model; created once and shared by all its rollouts."""

    tokenizer: PreTrainedTokenizerBase
    parser: ToolCallParser
    result_role: Role
    native: bool
    """True if the template itself renders the tools and their results."""
    context_tokens: int
    """Longest sequence, prompt and answer together."""

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, parser: str, context_tokens: int) -> ChatRenderer:
        """ConfigError if the tokenizer has no chat template, or one that does not fit the parser."""
        if not tokenizer.chat_template:
            raise ConfigError(
                f"the tokenizer {tokenizer.name_or_path} has no chat template.",
                "Use a chat (instruct) model.",
            )
        native = get_parser(parser).name != TEXT_TOOLS_PARSER
        if native and not _supports_tools(tokenizer):
            raise ConfigError(
                f"the chat template of {tokenizer.name_or_path} does not offer tools, and the parser "
                f"'{parser}' reads calls in a model's native format.",
                f"Set tool_call_parser to {TEXT_TOOLS_PARSER}: then tools are offered as text.",
            )
        return cls(tokenizer, get_parser(parser), result_role(tokenizer), native, context_tokens)

    def render(
        self,
        request: ChatRequest,
        assistant_texts: Mapping[int, str],
        template_kwargs: JSONObject | None = None,
    ) -> Rendered:
        """The prompt. `assistant_texts` are the exact texts that the model sampled, by the message's index.

        `template_kwargs` are variables of the model's own template, such as enable_thinking.
        """
        messages = [
            Message.assistant(assistant_texts[index]) if index in assistant_texts else message
            for index, message in enumerate(request.messages)
        ]
        if self.native:
            tools = [{"type": "function", "function": tool} for tool in request.tools]
            turns = [self._native_turn(message) for message in messages]
            return render(self.tokenizer, turns, tools, template_kwargs)
        plain = with_tools(messages, request.tools, self.parser, self.result_role)
        turns = [{"role": message.role.value, "content": message.content} for message in plain]
        return render(self.tokenizer, turns, None, template_kwargs)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the ids, special tokens included."""
        text = self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return str(text)

    def _native_turn(self, message: Message) -> JSONObject:
        turn: JSONObject = {"role": message.role.value, "content": message.content}
        if message.role is Role.ASSISTANT:
            turn["content"] = assistant_text(message, self.parser)
        if message.role is Role.TOOL:
            turn |= {"name": message.name, "tool_call_id": message.tool_call_id}
        return turn


def _supports_tools(tokenizer: PreTrainedTokenizerBase) -> bool:
    """True if the template renders tools and tool results, and leaves the assistant's text unchanged."""
    turns: list[JSONObject] = [
        {"role": "user", "content": "probe question"},
        {"role": "assistant", "content": "probe <words> of mine"},
        {"role": "tool", "content": "probe result", "name": "probe_tool", "tool_call_id": "a1B2c3D4e"},
    ]
    try:
        text = render(tokenizer, turns, [{"type": "function", "function": _PROBE_TOOL}]).text
    except ProviderError:
        return False
    return all(probe in text for probe in ("probe_tool", "probe <words> of mine", "probe result"))
