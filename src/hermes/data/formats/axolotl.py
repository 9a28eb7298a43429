"""Axolotl's `chat_template` type: messages with a flag on each: whether it is trained on.

Trained on are the turns of this trajectory's model: turns copied from an earlier conversation (a retry, a
continuation) are context only, as are those that another row of the same trajectory has as its own.
Arguments of calls are objects, as chat templates expect them. The matching dataset entry of Axolotl's
configuration is written by `--recipe axolotl`.
"""

from __future__ import annotations

from collections.abc import Iterator

from hermes.core import JSONObject, Message, Role, StepKind
from hermes.data.example import Example, UnfitError
from hermes.data.formats.base import Column, Format, ToolCallStyle
from hermes.data.formats.messages import TOOLS, read
from hermes.data.formats.turns import as_text, template_messages, to_tools


def write(example: Example, calls: ToolCallStyle) -> Iterator[JSONObject]:
    for part in example.as_seen():
        yield _row(part, calls)


def _row(example: Example, calls: ToolCallStyle) -> JSONObject:
    steps = [step for step in example.trajectory.steps if not step.ephemeral]
    learned = [step.kind is StepKind.MODEL for step in steps]
    if not any(learned):
        raise UnfitError("the model never answered")
    messages, flags, tools = list(example.messages), learned, to_tools(example.tools) or None
    if calls is ToolCallStyle.TEXT:
        both = zip(steps, learned, strict=True)
        said_by_model = iter([flag for step, flag in both if _is_model_turn(step.message)])
        messages, tools = list(as_text(example.messages, example.tools)), None
        flags = [next(said_by_model) if _is_model_turn(message) else False for message in messages]
    rows = template_messages(messages)
    return {
        "id": example.id,
        "messages": [{**row, "train": flag} for row, flag in zip(rows, flags, strict=True)],
        "tools": tools,
    }


def _is_model_turn(message: Message) -> bool:
    return message.role is Role.ASSISTANT


FORMAT = Format(
    name="axolotl",
    version=1,
    summary="Axolotl's chat_template type: messages, tools, and a train flag on each message",
    columns=(
        Column("id", "string", "the trajectory's id in the store"),
        Column("messages", "flagged_messages", "the turns; `train` says whether a turn is learned"),
        TOOLS,
    ),
    write=write,
    read=read,
    keeps=(
        "role, content, thinking, order",
        "calls: id, name, the value of their arguments",
        "tool schemas",
        "which turns were copied from an earlier trajectory",
    ),
    loses=("spacing and order of argument text", "sampling, usage, token ids, timing, raw replies, outcome"),
)
