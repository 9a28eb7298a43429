"""The token sequences that a managed server records, as a tree: a child continues the text of its parent.

Pure data structure: nothing is rendered, encoded or sampled here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, Field

from hermes.core.sequence import MASKED, MASKED_LOGPROB


class SequenceNode(BaseModel):
    """A recorded sequence. `tokens`, `masked_tokens` and `logprobs` have the same length."""

    full_text: str
    tokens: list[int]
    masked_tokens: list[int] = Field(default_factory=list)
    """The token id where it was sampled, -100 elsewhere."""
    logprobs: list[float] = Field(default_factory=list)
    """The logprob where it was sampled, 1.0 elsewhere."""
    metadata: dict[str, Any] = Field(default_factory=dict)

    def masked(self) -> SequenceNode:
        """The same tokens, none of them trained on."""
        return SequenceNode(
            full_text=self.full_text,
            tokens=self.tokens,
            masked_tokens=[MASKED] * len(self.tokens),
            logprobs=[MASKED_LOGPROB] * len(self.tokens),
        )

    def extended(
        self, text: str, prompt_ids: Sequence[int], sampled_ids: Sequence[int], logprobs: Sequence[float]
    ) -> SequenceNode:
        """This sequence, then new prompt tokens, then sampled tokens; `text` is the text of all of it."""
        return SequenceNode(
            full_text=text,
            tokens=[*self.tokens, *prompt_ids, *sampled_ids],
            masked_tokens=[*self.masked_tokens, *[MASKED] * len(prompt_ids), *sampled_ids],
            logprobs=[*self.logprobs, *[MASKED_LOGPROB] * len(prompt_ids), *logprobs],
        )


@dataclass(slots=True, eq=False)
class Branch:
    """A sequence and the sequences that continue it."""

    node: SequenceNode
    answer_count: int
    """Number of sampled answers in the sequence."""
    children: dict[str, Branch] = field(default_factory=dict)
    """By the text that each adds."""


class SequenceTree:
    """All sequences of a managed server. `root` is the empty sequence."""

    def __init__(self) -> None:
        self.root = Branch(SequenceNode(full_text="", tokens=[]), answer_count=0)
        self._branches: dict[str, Branch] = {}

    def nodes(self) -> dict[str, SequenceNode]:
        """The sequences by their text."""
        return {text: branch.node for text, branch in self._branches.items()}

    def longest_prefix(self, text: str) -> Branch:
        """The longest sequence that the text begins with. Only the branches that match are followed."""
        longest, pending = self.root, [self.root]
        while pending:
            branch = pending.pop()
            length = len(branch.node.full_text)
            if length >= len(longest.node.full_text):
                longest = branch
            pending += [child for suffix, child in branch.children.items() if text.startswith(suffix, length)]
        return longest

    def add(self, parent: Branch, node: SequenceNode, answer_count: int) -> None:
        """Adds a sequence that continues `parent`; it replaces a sequence of the same text."""
        branch = self._branches.get(node.full_text)
        if branch is None:
            suffix = node.full_text[len(parent.node.full_text) :]
            self._branches[node.full_text] = parent.children[suffix] = Branch(node, answer_count)
        else:
            branch.node, branch.answer_count = node, answer_count
