"""Tokenizers, rows and random trajectories for the compressor's tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from hermes.core import JSONObject, Message, ToolCall
from hermes.data.formats.sharegpt import conversations
from tests import records

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NATIVE = (
    "{%- if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    "<|im_end|>\n{% endif %}{%- for message in messages %}<|im_start|>{{ message.role }}\n"
    "{%- if message.reasoning_content and loop.last %}<think>{{ message.reasoning_content }}</think>"
    "{% endif %}{{ message.content }}{% for call in message.tool_calls or [] %}<tool_call>"
    "{{ call.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor -%}"
)
"""Knows tools and shows only the last turn's thinking, as several current models do."""


def write_tokenizer(folder: Path, template: str = CHATML) -> Path:
    """A byte-level BPE tokenizer, as a folder that transformers can open too."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([json.dumps(session_row(n)) for n in range(4)], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "TokenizersBackend", "bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(template)
    return folder


def session(number: int = 0, exchanges: int = 10, lines: int = 40, **changes: Any) -> list[Message]:
    """A coding session in which each call uses a path and an id that the result before it states."""
    messages = [
        Message.system("You are a coding agent."),
        Message.user(f"Job {number} fails. Repair src/part_0.py."),
    ]
    for n in range(exchanges):
        call = ToolCall(f"call_{n}", "read_file", json.dumps({"path": f"src/part_{n}.py", "id": f"id{n}7x"}))
        messages.append(Message.assistant(f"Step {n}.", reasoning=f"Thought {n}. " * 8, tool_calls=(call,)))
        text = [f"line {i} of file {n} in job {number}: nothing of interest {i * 7}" for i in range(lines)]
        text[lines // 2] = f"import src/part_{n + 1}.py as id{n + 1}7x"
        text[-1] = f"ValueError: number {n}00{n} is wrong" if n % 3 == 0 else text[-1]
        messages.append(Message.tool(call, "\n".join(text)))
    messages.append(Message.assistant(changes.get("answer", "It is repaired.")))
    return messages


def session_row(number: int = 0, exchanges: int = 10, lines: int = 40, **changes: Any) -> JSONObject:
    messages = session(number, exchanges, lines)
    return {"id": f"row-{number}", "conversations": conversations(messages, records.TOOLS), **changes}


def openai_message(message: Message) -> JSONObject:
    row: JSONObject = {"role": message.role.value, "content": message.content}
    if message.reasoning is not None:
        row["reasoning_content"] = message.reasoning
    if message.tool_calls:
        functions = [{"name": call.name, "arguments": call.arguments} for call in message.tool_calls]
        ids = [call.id for call in message.tool_calls]
        row["tool_calls"] = [
            {"id": call_id, "type": "function", "function": function}
            for call_id, function in zip(ids, functions, strict=True)
        ]
    if message.tool_call_id is not None:
        row |= {"tool_call_id": message.tool_call_id, "name": message.name}
    return row


def write_jsonl(path: Path, rows: list[JSONObject]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_jsonl(path: Path) -> list[JSONObject]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


texts = st.text(max_size=40) | st.sampled_from(
    ["", " ", "\n", "a/b.py", "Error: x_1 at /tmp/y", "<|im_end|>", "</tool_response>", "\ud800", "漢字 é 🙂"]
)
thoughts = st.none() | st.builds(lambda text, times: text * times, texts, st.integers(1, 20))
outputs = st.one_of(
    texts,
    st.builds(lambda text, times: (text + "\n") * times, texts, st.integers(1, 120)),
    st.builds(
        lambda text, code: json.dumps({"output": text * 40, "exit_code": code}), texts, st.integers(0, 2)
    ),
)


@st.composite
def trajectories(draw: st.DrawFn) -> list[Message]:
    """Parallel calls, unicode, huge outputs, empty turns, results that are missing."""
    messages = [Message.system(draw(texts))] if draw(st.booleans()) else []
    number = 0
    for _ in range(draw(st.integers(1, 4))):
        messages.append(Message.user(draw(texts)))
        for _ in range(draw(st.integers(0, 5))):
            calls = []
            for _ in range(draw(st.integers(1, 3))):
                number += 1
                arguments = json.dumps({"path": draw(texts)})
                calls.append(ToolCall(f"call_{number}", draw(records.names), arguments))
            messages.append(Message.assistant(draw(texts), reasoning=draw(thoughts), tool_calls=tuple(calls)))
            answered = len(calls) if draw(st.integers(0, 9)) else draw(st.integers(0, len(calls)))
            messages += [Message.tool(call, draw(outputs)) for call in calls[:answered]]
        if draw(st.integers(0, 5)):
            messages.append(Message.assistant(draw(texts), reasoning=draw(thoughts)))
    return messages
