"""Examples shown to the bundled model, which calls no tool unless it has seen how.

SmolLM2-135M makes no well-formed tool call zero-shot. After one whole exchange and two more calls it
calls the calculator and reads the result; with three whole exchanges it answers from its head instead.
They are shown as ephemeral input: recorded as what the model saw, left out of the dataset.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from hermes.config.providers import BUNDLED_PROVIDER
from hermes.core import Message, ToolCall

_CALLS = (
    ("What is 12 * 7?", "12 * 7"),
    ("Please compute 1500 - 372.", "1500 - 372"),
    ("How much is 64 divided by 16?", "64 / 16"),
)
_FIRST_RESULT, _FIRST_ANSWER = "84", "12 * 7 = 84."


def examples_for(model: str, toolsets: Sequence[str]) -> tuple[Message, ...]:
    """The opening examples this model needs for these toolsets; none for any but the bundled model."""
    if model.partition("/")[0] != BUNDLED_PROVIDER or "math" not in toolsets:
        return ()
    messages: list[Message] = []
    for number, (question, expression) in enumerate(_CALLS):
        call = ToolCall(f"example_{number}", "calculator", json.dumps({"expression": expression}))
        messages += [Message.user(question), Message.assistant(tool_calls=(call,))]
        if number == 0:
            messages += [Message.tool(call, _FIRST_RESULT), Message.assistant(_FIRST_ANSWER)]
    return tuple(messages)
