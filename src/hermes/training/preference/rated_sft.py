"""SFT examples from answers that were rated well enough: only the rated messages are trained on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from hermes.data.export.select import TrajectorySelection
from hermes.data.export.split import store_groups
from hermes.data.preference.rows import read_rows
from hermes.training.data.sft_examples import SftExample
from hermes.training.preference.examples import render_completion

if TYPE_CHECKING:
    from hermes.models.render.chat import ChatRenderer
    from hermes.store import Reader


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
