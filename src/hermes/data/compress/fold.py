"""Folding one conversation until it fits. Pure but for counting: no clock, no files, no model.

The estimate of what each step saved decides only when to look: the conversation is counted exactly, whole,
whenever the estimate says that it fits, after each stage, and at every step that costs a decision. Where
states are written by a model, the first pass assumes their longest form and says which ones it wants; a
second pass with the texts at hand then cannot need more room.
"""

from __future__ import annotations

from collections.abc import Mapping

from hermes.data.compress.conversation import Conversation
from hermes.data.compress.draft import Draft
from hermes.data.compress.folded import Folded
from hermes.data.compress.plan import FoldSettings, Strategy
from hermes.data.compress.state import Level
from hermes.data.compress.tokens import Counter


def fold(
    conversation: Conversation,
    settings: FoldSettings,
    counter: Counter,
    summaries: Mapping[str, str] | None = None,
) -> Folded:
    """The conversation within the budget, or as near to it as it gets."""
    draft = Draft(conversation, settings, counter, summaries or {})
    if draft.fits():
        return Folded(conversation.messages, draft.original, draft.original, True)
    by_model = settings.strategy is Strategy.SUMMARISE
    for stage in (
        draft.fold_outputs(Level.STATE),
        *(() if by_model else (draft.fold_outputs(Level.FACTS),)),
        draft.drop_thinking(),
        draft.fold_outputs(Level.BARE),
    ):
        if any(draft.seems_to_fit() and draft.fits() for _ in stage) or draft.fits():
            return draft.result()
    for stage in (draft.merge_exchanges(), draft.drop_instructions()):
        if any(draft.fits() for _ in stage):
            break
    return draft.result()
