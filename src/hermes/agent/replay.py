"""The steps of an interrupted attempt, for the one that continues it: what was paid for is not asked again.

A recorded answer stands for a model call exactly if the call would see what the recorded one saw: the same
messages and tools. Recorded results stand for calls of tools that leave nothing behind; the others run again
in the new sandbox, which rebuilds what was lost with the old one. If one of them now returns something else,
the model is asked from there on.

A record in which a secret was replaced is not used: the model saw other text than is recorded.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence

from hermes.core import JSONObject, Message, Step, StepKind, ToolCall
from hermes.core.message import hide_thinking
from hermes.core.model_call import CONTENT_FILTER, INTERRUPTED
from hermes.safety.redact import MARKER
from hermes.store import Record
from hermes.tools.base import Tool


class RecordedSteps:
    """The record of one attempt, used from its beginning as far as it fits."""

    def __init__(self, record: Record) -> None:
        self.header = record.trajectory.header
        self._inputs = record.inputs
        steps = record.trajectory.steps
        self.seen: tuple[Message, ...] = ()
        """The messages that the call of the latest answer was shown."""
        self._steps = deque(step for step in steps if step.kind is not StepKind.INPUT)
        self._results: dict[str, Step] = {}
        """By the id of the call: the results of the answer that was used last."""
        self.used: list[Step] = []
        """The model calls that were not asked again."""
        if any(MARKER in json.dumps(step.message.to_json(), ensure_ascii=False) for step in steps):
            self._steps.clear()

    def answer(self, messages: Sequence[Message], tools: Sequence[JSONObject]) -> Step | None:
        """The recorded model call that saw exactly this; None from the first one on that did not.

        Thinking is not compared: it is that of the recorded answers, and the call may not have been shown it.
        """
        self._results.clear()
        if not self._steps or not _is_answer(self._steps[0]):
            return None
        step = self._steps[0]
        recorded = self._inputs.get(step.index)
        everything = range(len(messages))
        if (
            recorded is None
            or hide_thinking(recorded.messages, everything) != hide_thinking(messages, everything)
            or [*recorded.tools] != [*tools]
        ):
            self._steps.clear()
            return None
        self.seen = recorded.messages
        self._steps.popleft()
        while self._steps and (result := self._steps[0].result) is not None:
            self._results[result.call_id] = self._steps.popleft()
        self.used.append(step)
        return step

    def result(self, call: ToolCall, tool: Tool | None) -> Step | None:
        """The recorded result of a call, if it can stand for running it."""
        if tool is None or not tool.stateless:
            return None
        step = self._results.get(call.id)
        saved = step is not None and step.result is not None and step.result.saved_path is not None
        return None if saved else step  # the file of a saved result is lost with its sandbox


def _is_answer(step: Step) -> bool:
    """Whether the step is a model call that gave an answer; one that the provider withheld is asked again."""
    return step.call is not None and step.call.finish_reason not in (INTERRUPTED, CONTENT_FILTER)
