"""POST /v1/chat/completions.

The conversation is rendered with the model's chat template. Tools are offered and tool calls are parsed in
the format of the server's tool-call parser; thinking is returned as `reasoning_content`. Logprobs are those
of the distribution that each token was sampled from. A streamed request for `top_logprobs` gets all events at
the end. A forced tool call (`tool_choice`) is begun in the prompt, as far as its text is fixed, and the model
samples the rest; that needs the parser `hermes`. Content other than text is not supported.

`OutputParser` splits the output into content, reasoning and tool calls, whole or while it is sampled. Calls
are parsed only if the request offers tools. A malformed call with a recognisable name is a call whose
arguments are not JSON, as OpenAI's may be; one without a name stays in the content as it is.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from hermes.core import JSONObject, Message, Role, ToolCall
from hermes.core.ids import new_id
from hermes.engine.server.openai.errors import invalid_request
from hermes.engine.server.openai.exchange import ChoiceStream, CompletionExchange, ServedModel
from hermes.engine.server.openai.sampling import sample_request, sampling_params, stop_condition
from hermes.engine.server.openai.schema import ChatCompletions
from hermes.engine.server.openai.text import stable_prefix, top_logprobs
from hermes.engine.types import SampledSequence, SampleResult
from hermes.models.fields import as_text
from hermes.models.parsers import ParsedText, ToolCallParser
from hermes.models.parsers.scan import NEVER, Grammar, scan
from hermes.models.remote.wire import read_calls, read_content
from hermes.models.render.prompting import TEXT_TOOLS_PARSER

_CALL = "<tool_call>"
FORCED_CALL = f'{_CALL}\n{{"name": "'
"""How every call begins."""
_THINK, _UNTHINK = "<think>", "</think>"


def forced_call(name: str) -> str:
    """How a call of this tool begins."""
    return f'{_CALL}\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": '


@dataclass(frozen=True, slots=True)
class ParsedOutput:
    content: str
    reasoning: str
    calls: tuple[ToolCall, ...] = ()


_NOTHING = ParsedOutput("", "")


@dataclass(frozen=True, slots=True)
class OutputParser:
    """For the outputs of one request."""

    parser: ToolCallParser
    tools: tuple[JSONObject, ...]
    """The tools that the request offers."""
    thinking: bool
    """The prompt ends with an open thinking block."""
    opening: str = ""
    """The beginning of the answer, which the prompt holds already."""

    def parse(self, text: str) -> ParsedOutput:
        parsed = self._parse(text, self.tools)
        named = tuple(call for call in parsed.tool_calls if call.name)
        unnamed = [call.arguments for call in parsed.tool_calls if not call.name]
        content = "\n".join([*filter(None, [parsed.content]), *unnamed])
        return ParsedOutput(content, parsed.reasoning or "", named)

    def parse_prefix(self, text: str) -> ParsedOutput:
        """The part that is certain for every output that begins with `text`; calls are never part of it."""
        if self.tools and self.parser.name != TEXT_TOOLS_PARSER:
            return _NOTHING  # only the parser knows how its calls begin
        marks = (_THINK, _UNTHINK, _CALL) if self.tools else (_THINK, _UNTHINK)
        if self.opening:
            return _NOTHING  # a call, which is sent at the end
        stable = stable_prefix(text.partition(_CALL)[0] if self.tools else text, marks).rstrip()
        parsed = self._parse(stable, ())
        return ParsedOutput(parsed.content, parsed.reasoning or "")

    def _parse(self, text: str, tools: Sequence[JSONObject]) -> ParsedText:
        # With an opening the thinking block was closed before it.
        source = f"{_THINK}{text}" if self.thinking and not self.opening else f"{self.opening}{text}"
        return self.parser.parse(source, tools) if tools else scan(source, _NO_CALLS)


class DeltaStreamer:
    """The output as deltas: each is what was added since the last one."""

    def __init__(self, parser: OutputParser) -> None:
        self._parser = parser
        self._content = ""
        self._reasoning = ""

    def push(self, text: str) -> ParsedOutput:
        """`text` is the whole output so far."""
        output = self._parser.parse_prefix(text)
        if not (output.content.startswith(self._content) and output.reasoning.startswith(self._reasoning)):
            return _NOTHING  # the prefix was reinterpreted; `end` sends the difference
        return self._advance(output)

    def end(self, text: str) -> ParsedOutput:
        return self._advance(self._parser.parse(text))

    def _advance(self, output: ParsedOutput) -> ParsedOutput:
        content = _remainder(output.content, self._content)
        reasoning = _remainder(output.reasoning, self._reasoning)
        self._content, self._reasoning = output.content, output.reasoning
        return ParsedOutput(content, reasoning, output.calls)


def _remainder(text: str, sent: str) -> str:
    """The text that is not sent yet. The whole output may lack white space that was sent at the front."""
    for prefix in (sent, sent.lstrip()):
        if text.startswith(prefix):
            return text[len(prefix) :]
    return text


def _never(text: str, at: int, tools: Sequence[JSONObject]) -> NoReturn:
    raise AssertionError("nothing opens a call in this grammar")


_NO_CALLS = Grammar(opener=NEVER, read=_never)


_ROLES = {
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
    "tool": Role.TOOL,
}


def read_chat(model: ServedModel, body: ChatCompletions) -> ChatExchange:
    spec = model.backend.engine.spec
    tools = read_tools(body.tools, body.tool_choice)
    messages = read_messages(body.messages)
    prompt = model.detokenizer.render_chat(messages, tools, body.chat_template_kwargs or {})
    opening = forced_opening(tools, body.tool_choice, model.detokenizer.chat_renderer.parser.name)
    prompt_ids = [*prompt.ids, *model.detokenizer.encode_opening(opening, prompt.thinking)]
    stop = stop_condition(body, spec.eos_ids)
    max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    params = sampling_params(body, stop, max_tokens, body.seed)
    topk = (body.top_logprobs or 0) if body.logprobs else 0
    return ChatExchange(
        model=body.model,
        stream=bool(body.stream),
        requests=[sample_request(prompt_ids, params, body.n or 1, topk, spec.max_length)],
        detokenizer=model.detokenizer,
        stop=stop,
        body=body,
        id=f"chatcmpl-{new_id()}",
        created_s=int(time.time()),
        parser=OutputParser(model.detokenizer.chat_renderer.parser, tools, prompt.thinking, opening),
    )


def read_messages(messages: Sequence[JSONObject]) -> tuple[Message, ...]:
    """OpenAIRequestError: one is not a message, or has content other than text."""
    tool_names: dict[str, str] = {}
    converted = []
    for index, fields in enumerate(messages):
        message = _read_message(fields, tool_names, f"messages[{index}]")
        tool_names |= {call.id: call.name for call in message.tool_calls}
        converted.append(message)
    return tuple(converted)


def _read_message(fields: JSONObject, tool_names: Mapping[str, str], path: str) -> Message:
    """`tool_names`: the tools that were called before, by call id; a tool result need not repeat the name."""
    role = _ROLES.get(as_text(fields.get("role")))
    if role is None:
        raise invalid_request(f"{path}.role is {fields.get('role')!r}: use one of {', '.join(_ROLES)}", path)
    content = _read_text(fields.get("content"), path)
    if role is Role.ASSISTANT:
        reasoning = as_text(fields.get("reasoning_content")) or as_text(fields.get("reasoning")) or None
        calls = read_calls(fields.get("tool_calls"))
        return Message.assistant(content, reasoning=reasoning, tool_calls=calls)
    if role is Role.TOOL:
        call_id = as_text(fields.get("tool_call_id"))
        name = as_text(fields.get("name")) or tool_names.get(call_id, "")
        return Message.tool(ToolCall(call_id, name, ""), content)
    return Message(role, content)


def _read_text(content: Any, path: str) -> str:
    if isinstance(content, list):
        for part in content:
            if not isinstance(part, dict) or part.get("type") not in ("text", "thinking"):
                kind = part.get("type") if isinstance(part, dict) else part
                raise invalid_request(
                    f"{path}.content has a part of type {kind!r}: only text is supported", path
                )
    elif content is not None and not isinstance(content, str):
        raise invalid_request(f"{path}.content must be text", path)
    return read_content(content)[0]


def read_tools(
    tools: Sequence[JSONObject] | None, choice: str | Mapping[str, Any] | None
) -> tuple[JSONObject, ...]:
    """The functions to offer. OpenAIRequestError: one is not a function."""
    if choice == "none":
        return ()
    return tuple(_read_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools or ()))


def forced_opening(tools: Sequence[JSONObject], choice: str | Mapping[str, Any] | None, parser: str) -> str:
    """How the answer begins if `choice` forces a call; empty: it is free.

    OpenAIRequestError: the choice names no tool of the request, or the parser's calls cannot be begun so.
    """
    if choice in (None, "auto", "none"):
        return ""
    if parser != TEXT_TOOLS_PARSER:
        raise invalid_request(
            f"tool_choice {choice!r} is not supported with the parser '{parser}': use 'auto' or 'none'",
            "tool_choice",
        )
    names = [as_text(tool["name"]) for tool in tools]
    if choice == "required" and names:
        return FORCED_CALL if len(names) > 1 else forced_call(names[0])
    function = choice.get("function") if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if name not in names:
        raise invalid_request(f"tool_choice {choice!r} names none of the tools: {names}", "tool_choice")
    return forced_call(as_text(name))


def _read_tool(tool: JSONObject, path: str) -> JSONObject:
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, dict) or not as_text(function.get("name")):
        raise invalid_request(
            f"{path} must be {{'type': 'function', 'function': {{'name': ..., ...}}}}", "tools"
        )
    return {  # in the order of the prompts that models are trained on
        "name": function["name"],
        "description": function.get("description") or "",
        "parameters": function.get("parameters") or {"type": "object", "properties": {}},
    }


@dataclass(frozen=True, kw_only=True)
class ChatExchange(CompletionExchange):
    object_name = "chat.completion"
    chunk_name = "chat.completion.chunk"

    body: ChatCompletions
    parser: OutputParser

    @property
    def with_logprobs(self) -> bool:
        return bool(self.body.logprobs)

    def response(self, results: Sequence[SampleResult], version: str) -> JSONObject:
        return super().response(results, version) | self.prompt_token_ids(0)

    def opening(self, version: str) -> Iterable[JSONObject]:
        delta = {"role": "assistant", "content": ""}
        choices = [_delta_choice(index, delta) for index in range(self.requests[0].num_samples)]
        return [self.envelope(self.chunk_name, choices, version) | self.prompt_token_ids(0)]

    def choice_stream(self, prompt: int, sample: int, version: str) -> ChoiceStream:
        return _ChatStream(self, sample)

    def choice(self, prompt: int, sample: int, sequence: SampledSequence) -> JSONObject:
        output = self.parser.parse(self.text(sequence))
        message: JSONObject = {
            "role": "assistant",
            "content": output.content or (None if output.calls else ""),
        }
        if output.reasoning:
            message["reasoning_content"] = output.reasoning
        if output.calls:
            message["tool_calls"] = [_call_json(call) for call in output.calls]
        return {
            "index": sample,
            "message": message,
            "logprobs": self.logprobs(sequence),
            "finish_reason": _finish_reason(sequence, output),
            **self.token_ids(sequence.tokens.tolist()),
        }

    def text(self, sequence: SampledSequence) -> str:
        return self.detokenizer.text(sequence.tokens.tolist(), self.stop, special=True)

    def logprobs(self, sequence: SampledSequence, start: int = 0) -> JSONObject | None:
        """The logprobs of the tokens from `start` on; None if the request has no `logprobs`."""
        if not self.with_logprobs:
            return None
        positions = range(start, len(sequence.tokens))
        return {"content": [self._logprob_entry(sequence, at) for at in positions], "refusal": None}

    def _logprob_entry(self, sequence: SampledSequence, position: int) -> JSONObject:
        likeliest = top_logprobs(sequence, position, self.body.top_logprobs or 0)
        sampled = int(sequence.tokens[position]), float(sequence.logprobs[position])
        return {
            **self.detokenizer.logprob_entry(*sampled),
            "top_logprobs": [self.detokenizer.logprob_entry(*token) for token in likeliest],
        }


class _ChatStream(ChoiceStream):
    def __init__(self, exchange: ChatExchange, index: int) -> None:
        self._exchange = exchange
        self._index = index
        self._text = exchange.detokenizer.incremental(exchange.stop, special=True)
        self._deltas = DeltaStreamer(exchange.parser)
        self._pushed_tokens = 0

    def push(self, token: int, logprob: float) -> JSONObject | None:
        exchange = self._exchange
        self._pushed_tokens += 1
        delta = _delta(self._deltas.push(self._text.push(token)))
        if not delta and not exchange.with_logprobs and not exchange.body.return_token_ids:
            return None
        logprobs = None
        if exchange.with_logprobs:
            entry = exchange.detokenizer.logprob_entry(token, logprob)
            logprobs = {"content": [{**entry, "top_logprobs": []}], "refusal": None}
        return _delta_choice(self._index, delta, logprobs) | exchange.token_ids([token])

    def end(self, sequence: SampledSequence, result: SampleResult) -> JSONObject:
        exchange, start = self._exchange, self._pushed_tokens
        output = self._deltas.end(exchange.text(sequence))
        delta = _delta(output)
        if output.calls:
            delta["tool_calls"] = [
                {"index": index, **_call_json(call)} for index, call in enumerate(output.calls)
            ]
        choice = _delta_choice(self._index, delta, exchange.logprobs(sequence, start))
        choice["finish_reason"] = _finish_reason(sequence, output)
        return choice | exchange.token_ids(sequence.tokens[start:].tolist())


def _delta_choice(index: int, delta: JSONObject, logprobs: JSONObject | None = None) -> JSONObject:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}


def _delta(output: ParsedOutput) -> JSONObject:
    fields = {"content": output.content, "reasoning_content": output.reasoning}
    return {name: text for name, text in fields.items() if text}


def _call_json(call: ToolCall) -> JSONObject:
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments or "{}"},
    }


def _finish_reason(sequence: SampledSequence, output: ParsedOutput) -> str:
    return "tool_calls" if output.calls and sequence.stop_reason == "stop" else sequence.stop_reason
