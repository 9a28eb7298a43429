"""Few-shot examples for the bundled model, which calls no tool without them.

SmolLM2-135M makes no well-formed tool call zero-shot. After three whole exchanges (question, call, result,
answer) it calls the calculator and reads the result. They are ephemeral input: recorded as
part of the model's input, left out of the dataset.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from hermes.config.providers import BUNDLED_PROVIDER
from hermes.core import Message, ToolCall

_EXCHANGES = (
    ("What is 12 * 7?", "12 * 7", "84"),
    ("Please compute 1500 - 372.", "1500 - 372", "1128"),
    ("How much is 64 divided by 16?", "64 / 16", "4"),
)


def examples_for(model: str, toolsets: Sequence[str]) -> tuple[Message, ...]:
    """The opening examples this model needs for these toolsets; none for any but the bundled model."""
    if model.partition("/")[0] != BUNDLED_PROVIDER or "math" not in toolsets:
        return ()
    messages: list[Message] = []
    for number, (question, expression, result) in enumerate(_EXCHANGES):
        call = ToolCall(f"example_{number}", "calculator", json.dumps({"expression": expression}))
        messages += [
            Message.user(question),
            Message.assistant(tool_calls=(call,)),
            Message.tool(call, result),
            Message.assistant(f"The answer is {result}."),
        ]
    return tuple(messages)
