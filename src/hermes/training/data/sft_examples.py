"""SFT examples from exported files or from the trajectories of the store: token ids and their loss mask.

Only the model's own turns are trained on, each with its end token. Conversations are rendered exactly as for
inference (`models.tokens.chat`). Where a template rewrites the history, the conversation becomes several
sequences, each a context that a model would really see. Rows with token ids (`hermes export --format tokens`)
are used unchanged. Rows and sequences that cannot be used are counted by reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.core import JSONObject, Message, Role, StepKind, canonical_json, content_hash
from hermes.core.message import hide_thinking, pair_results
from hermes.data.example import Example
from hermes.data.export.select import LeftOut, TrajectorySelection, select
from hermes.data.export.split import Side, group_tasks, side_of, store_groups
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
    """One sequence to train on."""

    tokens: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    task: str = ""
    """Examples of one task are on the same side of the eval split."""
    prompt: str = ""
    """By which tasks of files are grouped; empty: `task` names the group already."""

    @property
    def trained_tokens(self) -> int:
        return sum(self.loss_mask[1:])


@dataclass
class SftExamples:
    train: list[SftExample] = field(default_factory=list)
    held_out: list[SftExample] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    """Reason → rows or sequences that are in neither."""


def from_files(
    paths: Sequence[Path], renderer: Callable[[], ChatRenderer], left_out: Counter[str]
) -> Iterator[SftExample]:
    """`renderer` is called only if a row is text."""
    for file, line in rows_of(list(paths)):
        if line.row is not None and "input_ids" in line.row:
            yield _from_token_ids(line.row, f"{file}:{line.number}")
            continue
        try:
            example = read_row(line, FORMATS["trl-sft"] if _has_object_arguments(line.row) else None, None)
        except BadRowError as error:
            raise UsageError(f"{file}:{line.number}: {error}", "see hermes export --formats") from error
        for sequence in _sft_examples(example, renderer(), left_out, _excluded_turns(line.row or {})):
            yield replace(sequence, task=example.task, prompt=example.prompt)


def from_store(
    reader: Reader, selection: TrajectorySelection, renderer: ChatRenderer, left_out: Counter[str]
) -> Iterator[SftExample]:
    unfit, groups = LeftOut(), store_groups(reader)
    for example in select(reader, selection, unfit):
        group = groups.key(example.task)
        yield from (replace(e, task=group) for e in _sft_examples(example, renderer, left_out))
    left_out.update(unfit.reasons)


def gather(
    examples: Iterable[SftExample], left_out: Counter[str], *, longest: int, eval_share: float
) -> SftExamples:
    """Split for training and evaluation. HermesError if nothing is left to train on."""
    split = SftExamples(left_out=left_out)
    usable: list[SftExample] = []
    for example in examples:
        if len(example.tokens) > longest:
            left_out[f"longer than {longest} tokens"] += 1
        elif not example.trained_tokens:
            left_out["no turn of the model to train on"] += 1
        else:
            usable.append(example)
    groups = group_tasks((example.task, example.prompt) for example in usable)
    for example in usable:
        held_out = side_of(groups.key(example.task), eval_share) is Side.EVAL
        (split.held_out if held_out else split.train).append(example)
    if not split.train:
        reasons = "; ".join(f"{count} {reason}" for reason, count in left_out.most_common(3)) or "no rows"
        raise HermesError(f"there is nothing to train on: {reasons}", "widen the filter, or name other files")
    return split


def examples_of(
    messages: Sequence[Message],
    in_loss: Sequence[bool],
    tools: Sequence[JSONObject],
    renderer: ChatRenderer,
    unseen: Set[tuple[int, int]] = frozenset(),
) -> list[SftExample]:
    """The conversation as contexts that grow; `in_loss[i]`: whether message i is trained on.

    `unseen`: the thinking that the model was not shown, as in `Example`.
    """
    tokenizer = renderer.tokenizer
    end = Rendered(str(tokenizer.eos_token))
    contexts: list[tuple[list[int], list[bool]]] = []
    context: Rendered | None = None
    for index, message in enumerate(messages):
        if message.role is not Role.ASSISTANT or not in_loss[index]:
            continue
        before = hide_thinking(messages[:index], {earlier for answer, earlier in unseen if answer == index})
        prompt = renderer.render(ChatRequest(before, tuple(tools)), {})
        reply = render_content(tokenizer, assistant_text(message, renderer.parser)) + end
        continues = context is not None and prompt.continues(context)
        prompt_ids = encode(tokenizer, prompt, len(context.text) if continues and context else 0)
        if not continues:
            contexts.append(([], []))
        # Encoded alone, as a sampler would have sampled it.
        reply_ids = encode(tokenizer, reply)
        contexts[-1][0].extend([*prompt_ids, *reply_ids])
        contexts[-1][1].extend([*[False] * len(prompt_ids), *[True] * len(reply_ids)])
        context = prompt + reply
    return [SftExample(tuple(tokens), tuple(loss_mask)) for tokens, loss_mask in contexts]


def _sft_examples(
    example: Example, renderer: ChatRenderer, left_out: Counter[str], excluded: Set[int] = frozenset()
) -> Iterator[SftExample]:
    """`excluded`: turns that are not trained on, whatever their role."""
    steps = [step for step in example.trajectory.steps if not step.ephemeral]
    if any(step.message.images for step in steps):
        left_out["it has images"] += 1
        return
    in_loss = [step.kind is StepKind.MODEL and index not in excluded for index, step in enumerate(steps)]
    messages = pair_results([step.message for step in steps])
    yield from examples_of(messages, in_loss, example.tools, renderer, example.unseen)


def _excluded_turns(row: JSONObject) -> set[int]:
    """Turns that the row excludes from the loss: by `weight` as in OpenAI's format, by `train` as in
    Axolotl's."""
    messages: Any = row.get("messages")
    turns = messages if isinstance(messages, list) else []
    return {
        index
        for index, turn in enumerate(turns)
        if isinstance(turn, dict) and (turn.get("weight") == 0 or turn.get("train") is False)
    }


def _from_token_ids(row: JSONObject, source: str) -> SftExample:
    ids, mask = row["input_ids"], row.get("mask")
    if not isinstance(mask, list) or not isinstance(ids, list) or len(mask) != len(ids):
        raise UsageError(
            f"{source}: 'mask' is not a list as long as 'input_ids'", "hermes export --format tokens"
        )
    task = str(row.get("task_id") or row.get("id") or source)
    prompt = content_hash(canonical_json(ids[: mask.index(1)])) if 1 in mask else ""
    return SftExample(tuple(ids), tuple(map(bool, mask)), task, prompt)


def _has_object_arguments(row: JSONObject | None) -> bool:
    """Whether the arguments of tool calls are objects, as templates expect them, and not text."""
    messages: Any = (row or {}).get("messages")
    if not isinstance(messages, list):
        return False
    calls = [
        call for message in messages if isinstance(message, dict) for call in message.get("tool_calls") or ()
    ]
    return any(isinstance(call.get("function", {}).get("arguments"), dict) for call in calls)
