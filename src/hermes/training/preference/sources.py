"""Where preference data comes from: files, or the verdicts in the store; and which adapter answered.

`from_ratings` makes SFT examples of answers that were rated well enough: only the rated messages are trained
on.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.core import JSON, JSONObject, Message, Role, canonical_json, content_hash
from hermes.data.export.select import TrajectorySelection
from hermes.data.export.split import group_tasks, store_groups
from hermes.data.formats.base import BadRowError
from hermes.data.formats.turns import from_messages, from_tools
from hermes.data.importing import rows_of
from hermes.data.preference.pairs import PreferencePair, PreferenceSource
from hermes.data.preference.rows import read_rows
from hermes.errors import HermesError, UsageError
from hermes.training.data.sft_examples import SftExample
from hermes.training.policy_registry import named_policy, names_policy
from hermes.training.preference.examples import RatedCompletion, render_completion
from hermes.training.preference.reference import BASE

if TYPE_CHECKING:
    from hermes.data.export.select import TrajectorySelection
    from hermes.models.render.chat import ChatRenderer
    from hermes.store import Reader


DEFAULT_ORIGINS = ("choice", "rating", "retry")
"""Rewards are left out: they are a program's verdicts, and have to be asked for."""
_HINT = "a row has prompt, chosen and rejected; or prompt, completion and label: see hermes export --formats"
_GOOD, _BAD = 4.0, 2.0
"""A rating of at least _GOOD is a good one, of at most _BAD a bad one."""
_CREATED = re.compile(r"@\d+(\.\d+)?$")
"""The suffix that an engine adds to a checkpoint's path in its versions: when the weights were written."""


@dataclass(frozen=True)
class PreferenceData:
    pairs: Sequence[PreferencePair] = ()
    rated: Sequence[RatedCompletion] = ()
    left_out: Counter[str] = field(default_factory=Counter)
    policies: frozenset[str] = frozenset()
    """The policies that gave the answers, where known: tinker:// paths of weights, names of policies."""


def from_files(paths: Sequence[Path]) -> PreferenceData:
    rows = read_preference_files(paths)
    return PreferenceData(tuple(rows.pairs), tuple(rows.rated))


def from_store(
    reader: Reader, selection: TrajectorySelection, origins: Sequence[str], min_margin: float
) -> PreferenceData:
    from hermes.data.export.split import store_groups
    from hermes.data.preference.rows import read_rows

    rows = read_rows(
        reader,
        selection,
        origins=tuple(PreferenceSource(origin) for origin in origins),
        min_margin=min_margin,
        groups=store_groups(reader),
    )
    rated = tuple(
        RatedCompletion(
            span.prompt, span.completion, span.score, span.desirable, span.task, span.tools, span.unseen
        )
        for span in rows.spans
    )
    ids = {pair.chosen_id for pair in rows.pairs} | {pair.rejected_id for pair in rows.pairs}
    ids |= {span.trajectory_id for span in rows.spans}
    policies = frozenset(path for trajectory_id in ids for path in _policies(reader, trajectory_id))
    return PreferenceData(rows.pairs, rated, rows.left_out, policies)


def answers_reference(data: PreferenceData, home: Path) -> str:
    """The weights that gave all the answers; BASE if no adapter did. UsageError if there are several.

    `home`: of the policies, whose answers in chat are recorded with the policy's name.
    """
    adapters = {path for name in data.policies if (path := _sampler(name, home)) is not None}
    if len(adapters) > 1:
        names = ", ".join(sorted(adapters)[:3])
        raise UsageError(
            f"the answers came from {len(adapters)} adapters: {names}",
            "name one with --reference, or select the answers of one with --model or --since",
        )
    return next(iter(adapters), BASE)


def _sampler(name: str, home: Path) -> str | None:
    """None: the base model itself."""
    policy = named_policy(home, name)
    return name if policy is None else policy.sampler


def _policies(reader: Reader, trajectory_id: str) -> Iterator[str]:
    try:
        trajectory = reader.get(trajectory_id)
    except HermesError:
        return  # deleted since; its rows have been read already
    traces = [step.call.tokens for step in trajectory.steps if step.call and step.call.tokens]
    versions = [trace.policy_version for trace in traces if trace.policy_version]
    paths = [_CREATED.sub("", version) for version in versions if version.startswith("tinker://")]
    yield from paths
    if not paths and names_policy(trajectory.header.model):
        yield trajectory.header.model


@dataclass
class FileRows:
    pairs: list[PreferencePair] = field(default_factory=list)
    rated: list[RatedCompletion] = field(default_factory=list)


def read_preference_files(paths: Sequence[Path]) -> FileRows:
    """UsageError, with file and line, if a row is neither a pair nor a rated answer."""
    rows = FileRows()
    for file, line in rows_of(list(paths)):
        try:
            if line.row is None:
                raise BadRowError(line.problem or "not a row")
            _read(line.row, rows)
        except (BadRowError, KeyError, TypeError, ValueError, AttributeError) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise UsageError(f"{file}:{line.number}: {reason}", _HINT) from error
    tasks = [(pair.task, pair.prompt) for pair in rows.pairs]
    tasks += [(rated.task, rated.prompt) for rated in rows.rated]
    groups = group_tasks((task, _question(prompt)) for task, prompt in tasks)
    rows.pairs = [replace(pair, task=groups.key(pair.task)) for pair in rows.pairs]
    rows.rated = [replace(rated, task=groups.key(rated.task)) for rated in rows.rated]
    return rows


def _question(prompt: Sequence[Message]) -> str:
    return next((message.content for message in prompt if message.role is Role.USER), "")


def _read(row: JSONObject, rows: FileRows) -> None:
    tools = from_tools(row.get("tools"))
    if "chosen" in row or "rejected" in row:
        prompt, chosen, rejected = _sides(row)
        origin, margin = row.get("origin"), row.get("margin")
        rows.pairs.append(
            PreferencePair(
                prompt,
                chosen,
                rejected,
                str(row.get("chosen_id") or ""),
                str(row.get("rejected_id") or ""),
                int(row.get("divergence_step") or len(prompt)),
                PreferenceSource(origin) if origin else PreferenceSource.CHOICE,
                float(margin or 0.0),
                _task(row, prompt),
                tools,
                chosen_unseen=_unseen(row, "chosen"),
                rejected_unseen=_unseen(row, "rejected"),
            )
        )
        return
    prompt = _messages(row["prompt"], Role.USER)
    completion = _messages(row["completion"], Role.ASSISTANT)
    _check_sides(prompt, completion)
    score, desirable = _verdict(row)
    unseen = _unseen(row, "completion")
    rows.rated.append(
        RatedCompletion(prompt, completion, score, desirable, _task(row, prompt), tools, unseen)
    )


def _sides(row: JSONObject) -> tuple[tuple[Message, ...], tuple[Message, ...], tuple[Message, ...]]:
    chosen, rejected = (_messages(row[name], Role.ASSISTANT) for name in ("chosen", "rejected"))
    if "prompt" in row:
        prompt = _messages(row["prompt"], Role.USER)
    else:  # both sides are whole conversations: what they share is the prompt
        shared = next(
            (index for index, (a, b) in enumerate(zip(chosen, rejected, strict=False)) if a != b),
            min(len(chosen), len(rejected)),
        )
        prompt, chosen, rejected = chosen[:shared], chosen[shared:], rejected[shared:]
    for side in (chosen, rejected):
        _check_sides(prompt, side)
    if chosen == rejected:
        raise BadRowError("'chosen' and 'rejected' are equal")
    return prompt, chosen, rejected


def _check_sides(prompt: Sequence[Message], completion: Sequence[Message]) -> None:
    if not prompt:
        raise BadRowError("its prompt is empty")
    if not completion or completion[0].role is not Role.ASSISTANT:
        raise BadRowError("a completion does not begin with the assistant")


def _verdict(row: JSONObject) -> tuple[float, bool | None]:
    """The score from 1 to 5 and the label; each gives the other where a row has only one."""
    label, rating = row.get("label"), row.get("rating")
    if label is None and rating is None:
        raise BadRowError("it has neither 'label' nor 'rating'")
    if rating is None:
        return (5.0 if label else 1.0), bool(label)
    score = float(rating)
    if not 1 <= score <= 5:
        raise BadRowError(f"its rating is {score:g}, not from 1 to 5")
    if label is not None:
        return score, bool(label)
    return score, True if score >= _GOOD else False if score <= _BAD else None


def _messages(value: JSON, role: Role) -> tuple[Message, ...]:
    """Messages, or a text, which is one message of that role."""
    if isinstance(value, str):
        return (Message(role, value),)
    return from_messages(value)


def _unseen(row: JSONObject, side: str) -> frozenset[tuple[int, int]]:
    """Pairs of positions in the side's messages, as `Example.unseen_within` has them; most rows have none."""
    return frozenset((int(answer), int(earlier)) for answer, earlier in row.get(f"{side}_unseen") or ())


def _task(row: JSONObject, prompt: Sequence[Message]) -> str:
    """Rows with one prompt are on the same side of a split."""
    stated = row.get("task_id") or row.get("task")
    return str(stated) if stated else content_hash(canonical_json([message.to_json() for message in prompt]))


def from_ratings(
    reader: Reader,
    selection: TrajectorySelection,
    min_rating: float,
    renderer: ChatRenderer,
    left_out: Counter[str],
) -> Iterator[SftExample]:
    """`selection` without a bound on ratings, which would be one on a trajectory's latest only."""
    whole = replace(selection, filters=replace(selection.filters, min_rating=None))
    rows = read_rows(reader, whole, origins=(), groups=store_groups(reader))
    left_out.update(rows.left_out)
    for span in rows.spans:
        if span.score < min_rating:
            left_out[f"rated below {min_rating:g}"] += 1
        elif any(message.images for message in (*span.prompt, *span.completion)):
            left_out["it has images"] += 1
        else:
            completion = render_completion(span.prompt, span.completion, span.tools, renderer, span.unseen)
            yield from (replace(context, task=span.task) for context in completion.contexts)
