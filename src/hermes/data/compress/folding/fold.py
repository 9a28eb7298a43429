"""Folding one conversation until it fits. Pure but for counting: no clock, no files, no model.

The estimate of what each step saved decides only when to look: the conversation is counted exactly, whole,
whenever the estimate says that it fits, after each stage, and at every step that costs a decision. Where
states are written by a model, the first pass assumes their longest form and says which ones it wants; a
second pass with the texts at hand then cannot need more room.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hermes.data.compress.counting.tokens import Counter
from hermes.data.compress.folding.draft import FoldingDraft
from hermes.data.compress.folding.plan import FoldSettings, Strategy
from hermes.data.compress.folding.result import Folded
from hermes.data.compress.folding.state import FoldLevel
from hermes.data.compress.forms.conversation import RowConversation


def fold(
    conversation: RowConversation,
    settings: FoldSettings,
    counter: Counter,
    summaries: Mapping[str, str] | None = None,
) -> Folded:
    """The conversation within the budget, or as near to it as it gets."""
    draft = FoldingDraft(conversation, settings, counter, summaries or {})
    if draft.fits():
        return Folded(conversation.messages, draft.original, draft.original, True)
    # FACTS would replace a model's text by bare words.
    states = (
        (FoldLevel.STATE,) if settings.strategy is Strategy.SUMMARISE else (FoldLevel.STATE, FoldLevel.FACTS)
    )
    if _fold_until_fit(draft, states, (False,)):
        return draft.result()
    if draft.protects_outputs and not settings.strict_protect:
        # The row cannot fit with these outputs whole. Folding starts anew with all outputs on the same
        # footing, so that the earlier ones keep the room that the protected ones give up.
        draft = FoldingDraft(conversation, settings, counter, summaries or {})
        if _fold_until_fit(draft, states, (False, True)):
            return draft.result()
    for stage in (draft.merge_exchanges(), draft.drop_instructions()):
        if any(draft.fits() for _ in stage):
            break
    return draft.result()


def _fold_until_fit(draft: FoldingDraft, states: Sequence[FoldLevel], protection: Sequence[bool]) -> bool:
    """Folds outputs and thinking, no decisions. At each level, unprotected outputs come first."""
    for stage in (
        *(draft.fold_outputs(level, protected=protected) for level in states for protected in protection),
        draft.drop_thinking(),
        *(draft.fold_outputs(FoldLevel.BARE, protected=protected) for protected in protection),
    ):
        if any(draft.seems_to_fit() and draft.fits() for _ in stage) or draft.fits():
            return True
    return False
