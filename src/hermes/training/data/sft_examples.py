"""What SFT learns from: exported files or the store's own trajectories, as tokens and which of them are
learned.

Only what the model said is learned: assistant turns, each with the mark that ends it. Conversations are
written exactly as the rest of Hermes speaks to a model (`models.token_chat`), and where a template rewrites
history, the conversation becomes several sequences, each a context that a model would really see. Rows that
hold token ids (`hermes export --format tokens`) are taken as they are. What cannot be used is counted with
its reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.core import JSONObject, Message, Role, StepKind
from hermes.data.example import Example
from hermes.data.export.select import LeftOut, TrajectorySelection, select
from hermes.data.export.split import Side, side_of
from hermes.data.formats.base import BadRowError
from hermes.data.formats.registry import FORMATS
from hermes.data.importing import read_row, rows_of
from hermes.errors import HermesError, UsageError
from hermes.models.base import ChatRequest
from hermes.models.render.escape import Rendered
from hermes.models.render.prompting import assistant_text
from hermes.models.render.template import encode, render_content

if TYPE_CHECKING:
    from hermes.models.render.chat import ChatRenderer
    from hermes.store import Reader


@dataclass(frozen=True, slots=True)
class SftExample:
    """One sequence to learn from."""

    tokens: tuple[int, ...]
    learned: tuple[bool, ...]
    task: str = ""
    """Lessons of one task fall on the same side of the eval split."""

    @property
    def learned_tokens(self) -> int:
        return sum(self.learned[1:])


@dataclass
class SftExamples:
    train: list[SftExample] = field(default_factory=list)
    held_out: list[SftExample] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    """Reason → rows or sequences that are in neither."""


def from_files(
    paths: Sequence[Path], speech: Callable[[], ChatRenderer], left_out: Counter[str]
) -> Iterator[SftExample]:
    """`speech` is asked for only if some row is text."""
    for file, line in rows_of(list(paths)):
        if line.row is not None and "input_ids" in line.row:
            yield _exact(line.row, f"{file}:{line.number}")
            continue
        try:
            example = read_row(line, FORMATS["trl-sft"] if _objects(line.row) else None, None)
        except BadRowError as error:
            raise UsageError(f"{file}:{line.number}: {error}", "see hermes export --formats") from error
        yield from _lessons(example, speech(), left_out, _muted(line.row or {}))


def from_store(
    reader: Reader, selection: TrajectorySelection, speech: ChatRenderer, left_out: Counter[str]
) -> Iterator[SftExample]:
    unfit = LeftOut()
    for example in select(reader, selection, unfit):
        yield from _lessons(example, speech, left_out)
    left_out.update(unfit.reasons)


def gather(
    lessons: Iterable[SftExample], left_out: Counter[str], *, longest: int, eval_share: float
) -> SftExamples:
    """Split for training and evaluation. HermesError if nothing is left to train on."""
    found = SftExamples(left_out=left_out)
    for lesson in lessons:
        if len(lesson.tokens) > longest:
            left_out[f"longer than {longest} tokens"] += 1
        elif not lesson.learned_tokens:
            left_out["the model says nothing in it"] += 1
        elif side_of(lesson.task, eval_share) is Side.EVAL:
            found.held_out.append(lesson)
        else:
            found.train.append(lesson)
    if not found.train:
        why = "; ".join(f"{count} {reason}" for reason, count in left_out.most_common(3)) or "no rows"
        raise HermesError(f"there is nothing to train on: {why}", "widen the filter, or name other files")
    return found


def lessons_of(
    messages: Sequence[Message], said: Sequence[bool], tools: Sequence[JSONObject], speech: ChatRenderer
) -> list[SftExample]:
    """The conversation as contexts that grow; `said[i]`: whether message i is to be learned."""
    tokenizer = speech.tokenizer
    end = Rendered(str(tokenizer.eos_token))
    made: list[tuple[list[int], list[bool]]] = []
    written: Rendered | None = None
    for index, message in enumerate(messages):
        if message.role is not Role.ASSISTANT or not said[index]:
            continue
        prompt = speech.render(ChatRequest(tuple(messages[:index]), tuple(tools)), {})
        answer = render_content(tokenizer, assistant_text(message, speech.parser)) + end
        goes_on = written is not None and prompt.continues(written)
        new = encode(tokenizer, prompt, len(written.text) if goes_on and written else 0)
        if not goes_on:
            made.append(([], []))
        # Encoded alone, as a sampler would have written it.
        own = encode(tokenizer, answer)
        made[-1][0].extend([*new, *own])
        made[-1][1].extend([*[False] * len(new), *[True] * len(own)])
        written = prompt + answer
    return [SftExample(tuple(tokens), tuple(learned)) for tokens, learned in made]


def _lessons(
    example: Example, speech: ChatRenderer, left_out: Counter[str], muted: Set[int] = frozenset()
) -> Iterator[SftExample]:
    """`muted`: turns that are not to be learned, whoever said them."""
    steps = [step for step in example.trajectory.steps if not step.ephemeral]
    if any(step.message.images for step in steps):
        left_out["it has images"] += 1
        return
    said = [step.kind is StepKind.MODEL and index not in muted for index, step in enumerate(steps)]
    messages = _named([step.message for step in steps])
    for lesson in lessons_of(messages, said, example.tools, speech):
        yield SftExample(lesson.tokens, lesson.learned, example.task)


def _named(messages: Sequence[Message]) -> list[Message]:
    """Results with the name of their tool, also where the row says it only in the call."""
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    return [
        replace(message, name=names.get(message.tool_call_id or ""))
        if message.role is Role.TOOL and not message.name
        else message
        for message in messages
    ]


def _muted(row: JSONObject) -> set[int]:
    """Turns that the row says are not learned: by `weight` as OpenAI has it, by `train` as Axolotl has it."""
    messages: Any = row.get("messages")
    turns = messages if isinstance(messages, list) else []
    return {
        index
        for index, turn in enumerate(turns)
        if isinstance(turn, dict) and (turn.get("weight") == 0 or turn.get("train") is False)
    }


def _exact(row: JSONObject, place: str) -> SftExample:
    ids, mask = row["input_ids"], row.get("mask")
    if not isinstance(mask, list) or not isinstance(ids, list) or len(mask) != len(ids):
        raise UsageError(
            f"{place}: 'mask' is not a list as long as 'input_ids'", "hermes export --format tokens"
        )
    return SftExample(
        tuple(ids), tuple(bool(one) for one in mask), str(row.get("task_id") or row.get("id") or place)
    )


def _objects(row: JSONObject | None) -> bool:
    """Whether the calls' arguments are objects, as templates want them, and not text."""
    messages: Any = (row or {}).get("messages")
    if not isinstance(messages, list):
        return False
    calls = [call for one in messages if isinstance(one, dict) for call in one.get("tool_calls") or ()]
    return any(isinstance(call.get("function", {}).get("arguments"), dict) for call in calls)
