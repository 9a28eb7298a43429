"""Trajectories side by side: what they share is folded, the first divergence is marked."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from hermes.core import JSONObject, Relation, Step, Trajectory
from hermes.data.diff import message_content
from hermes.store import Filter, Summary
from hermes.store.browse.reader import BrowseReader, WindowStep
from hermes.store.encode import search_text
from hermes.web.render.transcript import StepCard, make_cards, sort_verdicts
from hermes.web.requests import WebRequest
from hermes.web.responses import PageError

MAX_COLUMNS = 4
_MAX_STEPS = 60


@dataclass(frozen=True, slots=True)
class ComparedColumn:
    """One trajectory of the page."""

    summary: Summary
    cards: list[StepCard]
    left_out: int
    """Steps after those that are shown."""


def show(request: WebRequest) -> Response:
    references = request.texts("id")
    if not 2 <= len(references) <= MAX_COLUMNS or any(len(reference) > 64 for reference in references):
        raise PageError(
            400,
            f"{len(references)} trajectories cannot be compared",
            f"Give 2 to {MAX_COLUMNS}: /compare?id=A&id=B",
        )
    with request.context.reader() as reader:
        ids = list(dict.fromkeys(reader.resolve(reference) for reference in references))
        if len(ids) < 2:
            raise PageError(400, "a trajectory cannot be compared with itself", "Give two different ids.")
        trajectories = [reader.get(trajectory_id) for trajectory_id in ids]
        shared = shared_messages(trajectories)
        columns = [make_column(reader, trajectory, shared) for trajectory in trajectories]
        common = _cards(reader, trajectories[0], _conversation(trajectories[0])[:shared])
    values: dict[str, Any] = {
        "columns": columns,
        "shared": shared,
        "common": common[:_MAX_STEPS],
        "compression": _compression(trajectories),
        "event_id": str(uuid.uuid4()),
        "equal": all(not column.cards for column in columns),
    }
    return request.page("compare.html", values)


def shared_messages(trajectories: list[Trajectory]) -> int:
    """How many messages at the beginning are equal in all of them."""
    contents = [
        [message_content(step.message) for step in _conversation(trajectory)] for trajectory in trajectories
    ]
    shared = 0
    for position in range(min(map(len, contents))):
        if any(content[position] != contents[0][position] for content in contents[1:]):
            break
        shared += 1
    return shared


def make_column(reader: BrowseReader, trajectory: Trajectory, shared: int) -> ComparedColumn:
    steps = _conversation(trajectory)[shared:]
    (summary,) = reader.summaries(Filter(ids=(trajectory.header.id,)))
    return ComparedColumn(
        summary, _cards(reader, trajectory, steps[:_MAX_STEPS]), max(0, len(steps) - _MAX_STEPS)
    )


def _conversation(trajectory: Trajectory) -> list[Step]:
    return [step for step in trajectory.steps if not step.ephemeral]


def _cards(reader: BrowseReader, trajectory: Trajectory, steps: list[Step]) -> list[StepCard]:
    trajectory_id = trajectory.header.id
    verdicts = sort_verdicts(reader.ratings(trajectory_id), reader.rewards(trajectory_id))
    return make_cards([WindowStep(step, False) for step in steps], verdicts)


def _compression(trajectories: list[Trajectory]) -> JSONObject | None:
    """Tokens before and after, if one of two is the compressed version of the other; characters if its tokens
    were not recorded."""
    if len(trajectories) != 2:
        return None
    first, second = (trajectory.header for trajectory in trajectories)
    for original, compressed in ((first, second), (second, first)):
        if compressed.relation is Relation.COMPRESSED and compressed.parent_id == original.id:
            notes = compressed.metadata.get("compression")
            if isinstance(notes, dict) and isinstance(notes.get("original_tokens"), int):
                return {
                    "unit": "tokens",
                    "before": notes["original_tokens"],
                    "after": notes["compressed_tokens"],
                }
            sizes = {trajectory.header.id: _characters(trajectory) for trajectory in trajectories}
            return {"unit": "characters", "before": sizes[original.id], "after": sizes[compressed.id]}
    return None


def _characters(trajectory: Trajectory) -> int:
    return sum(len(search_text(message)) for message in trajectory.messages)


ROUTES = (("GET", "/compare", show),)
