"""Preference pairs and rated answers as token sequences with their loss masks.

A completion is rendered as the policy saw and wrote it (`models.render`): only the assistant's own tokens are
in the loss, results of tools are not. Where a template rewrites the history, a completion becomes several
sequences, whose log-probabilities add up. Rows that cannot be used are counted by reason.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from hermes.core import JSONObject, Message, Role, canonical_json, content_hash
from hermes.core.message import pair_results
from hermes.data.diff import message_content
from hermes.data.export.split import Side, side_of
from hermes.data.preference.pairs import PreferencePair
from hermes.errors import HermesError
from hermes.training.data.sft_examples import SftExample, examples_of

if TYPE_CHECKING:
    from hermes.models.render.chat import ChatRenderer

Row = TypeVar("Row")
MIN_ROWS = 8
"""With fewer rows to train on, a run would only learn them by heart."""


@dataclass(frozen=True, slots=True)
class RatedCompletion:
    """One answer and the verdict on it."""

    prompt: tuple[Message, ...]
    completion: tuple[Message, ...]
    score: float
    """1 to 5."""
    desirable: bool | None
    """None: neither."""
    task: str
    tools: tuple[JSONObject, ...] = ()
    unseen: frozenset[tuple[int, int]] = frozenset()
    """Thinking in the completion that its later calls were not shown: `Example.unseen_within`."""


@dataclass(frozen=True, slots=True)
class RenderedCompletion:
    """One side of a pair, or one rated answer, as token sequences."""

    contexts: tuple[SftExample, ...]

    @property
    def trained_tokens(self) -> int:
        return sum(context.trained_tokens for context in self.contexts)

    @property
    def longest(self) -> int:
        return max((len(context.tokens) for context in self.contexts), default=0)

    @property
    def prompt_tokens(self) -> int:
        """Tokens before the first one that is trained on."""
        return self.contexts[0].loss_mask.index(True)


@dataclass(frozen=True, slots=True)
class PairExample:
    chosen: RenderedCompletion
    rejected: RenderedCompletion
    task: str
    margin: float = 0.0


@dataclass(frozen=True, slots=True)
class UnpairedExample:
    completion: RenderedCompletion
    desirable: bool
    task: str


@dataclass(frozen=True, slots=True)
class RowLimits:
    """Which rows are used, and for what."""

    longest: int
    """Longest sequence, in tokens."""
    eval_share: float
    """Share of tasks that is held out."""
    min_rows: int = MIN_ROWS
    """Fewer rows to train on are an error."""


@dataclass
class RowSplit(Generic[Row]):
    """Rows to train on and rows held out, whose tasks are not trained on."""

    train: list[Row] = field(default_factory=list)
    held_out: list[Row] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    """Reason → rows that are in neither."""


def render_completion(
    prompt: Sequence[Message],
    completion: Sequence[Message],
    tools: Sequence[JSONObject],
    renderer: ChatRenderer,
    unseen: Set[tuple[int, int]] = frozenset(),
) -> RenderedCompletion:
    """`unseen`: the thinking in the completion that its later answers were not shown, by position in it."""
    messages = pair_results([*prompt, *completion])
    in_loss = [
        index >= len(prompt) and message.role is Role.ASSISTANT for index, message in enumerate(messages)
    ]
    start = len(prompt)
    shifted = {(answer + start, earlier + start) for answer, earlier in unseen}
    return RenderedCompletion(tuple(examples_of(messages, in_loss, tools, renderer, shifted)))


def consistent_pairs(pairs: Iterable[PreferencePair], left_out: Counter[str]) -> list[PreferencePair]:
    """Without those that others contradict: of two opposite verdicts on the same two answers the more
    frequent one counts, and none if they are equally frequent."""
    rows = [(_sides_key(pair), pair) for pair in pairs]
    votes = Counter(key for key, _ in rows)
    consistent = []
    for (prompt, chosen, rejected), pair in rows:
        against = votes[prompt, rejected, chosen]
        if not against:
            consistent.append(pair)
        elif against >= votes[prompt, chosen, rejected]:
            left_out["another verdict says the opposite"] += 1
        else:
            consistent.append(pair)
    return consistent


def pair_examples(
    pairs: Sequence[PreferencePair],
    renderer: ChatRenderer,
    left_out: Counter[str],
    limits: RowLimits,
) -> RowSplit[PairExample]:
    """The pairs as token sequences, split by task. HermesError if too few are left."""
    split = RowSplit[PairExample](left_out=left_out)
    for pair in consistent_pairs(pairs, left_out):
        if any(message.images for message in (*pair.prompt, *pair.chosen, *pair.rejected)):
            left_out["it has images"] += 1
            continue
        chosen = render_completion(pair.prompt, pair.chosen, pair.tools, renderer, pair.chosen_unseen)
        rejected = render_completion(pair.prompt, pair.rejected, pair.tools, renderer, pair.rejected_unseen)
        if max(chosen.longest, rejected.longest) > limits.longest:
            left_out[f"longer than {limits.longest} tokens"] += 1
        elif not chosen.trained_tokens or not rejected.trained_tokens:
            left_out["no turn of the model to train on"] += 1
        else:
            sort_in(split, PairExample(chosen, rejected, pair.task, pair.margin), pair.task, limits)
    check_enough(split, "pairs", limits.min_rows)
    return split


def unpaired_examples(
    answers: Sequence[RatedCompletion],
    renderer: ChatRenderer,
    left_out: Counter[str],
    limits: RowLimits,
) -> RowSplit[UnpairedExample]:
    """The rated answers as token sequences, split by task. HermesError if too few, or one class only, are
    left."""
    split = RowSplit[UnpairedExample](left_out=left_out)
    for rated in answers:
        if rated.desirable is None:
            left_out["rated neither good nor bad"] += 1
            continue
        if any(message.images for message in (*rated.prompt, *rated.completion)):
            left_out["it has images"] += 1
            continue
        completion = render_completion(rated.prompt, rated.completion, rated.tools, renderer, rated.unseen)
        if completion.longest > limits.longest:
            left_out[f"longer than {limits.longest} tokens"] += 1
        elif not completion.trained_tokens:
            left_out["no turn of the model to train on"] += 1
        else:
            sort_in(split, UnpairedExample(completion, rated.desirable, rated.task), rated.task, limits)
    check_enough(split, "rated answers", limits.min_rows)
    liked = sum(row.desirable for row in split.train)
    if liked in (0, len(split.train)):
        verdict = "good" if liked else "bad"
        raise HermesError(
            f"all {len(split.train)} rated answers are {verdict}: KTO needs good and bad ones",
            f"rate some that are {'bad' if liked else 'good'}, or use hermes train sft --min-rating 4",
        )
    return split


def label_by_rating(answers: Sequence[RatedCompletion], good: float | None) -> list[RatedCompletion]:
    """Good from that rating on, and else bad: for raters whose 4 means that something was missing. None: the
    labels stay as they are."""
    if good is None:
        return list(answers)
    return [replace(rated, desirable=rated.score >= good) for rated in answers]


def sort_in(split: RowSplit[Row], row: Row, task: str, limits: RowLimits) -> None:
    """Adds the row to its side; all rows of a task are on the same one."""
    side = split.held_out if side_of(task, limits.eval_share) is Side.EVAL else split.train
    side.append(row)


def check_enough(split: RowSplit[Row], noun: str, min_rows: int) -> None:
    """HermesError if there are fewer rows to train on than that."""
    if len(split.train) >= max(1, min_rows):
        return
    reasons = "; ".join(f"{count} left out ({reason})" for reason, count in split.left_out.most_common(3))
    held_out = f", {len(split.held_out)} held out" if split.held_out else ""
    raise HermesError(
        f"there are {len(split.train)} {noun} to train on{held_out}, and at least {max(1, min_rows)} are "
        f"needed{': ' + reasons if reasons else ''}",
        "rate more (hermes rate queue), widen the filter, or lower --min-rows",
    )


def digest_of(completions: Iterable[RenderedCompletion]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for completion in completions:
        for context in completion.contexts:
            digest.update(repr((context.tokens, context.loss_mask)).encode())
        digest.update(b"/")
    return digest.hexdigest()


def mismatched(prompt: RenderedCompletion, neighbour: RenderedCompletion, longest: int) -> RenderedCompletion:
    """The neighbour's completion after this one's prompt, cut to the longest sequence."""
    cut, start = prompt.prompt_tokens, neighbour.prompt_tokens
    source, foreign = prompt.contexts[0], neighbour.contexts[0]
    tokens = (*source.tokens[:cut], *foreign.tokens[start:])[:longest]
    loss_mask = (*[False] * cut, *foreign.loss_mask[start:])[:longest]
    return RenderedCompletion((replace(source, tokens=tokens, loss_mask=loss_mask),))


def _sides_key(pair: PreferencePair) -> tuple[str, str, str]:
    return (
        _digest([*pair.prompt], pair.tools),
        _digest(pair.chosen),
        _digest(pair.rejected),
    )


def _digest(messages: Sequence[Message], tools: Sequence[JSONObject] = ()) -> str:
    contents = [list(message_content(message)) for message in messages]
    return content_hash(canonical_json([contents, list(tools)]))
