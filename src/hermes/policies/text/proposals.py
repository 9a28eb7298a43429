"""Proposals for a text: from a model that reflects on scored rollouts, or from a list; and what refuses one.

A proposal is refused if it is too long, holds a secret, or repeats eight words in a row of what a task
expects as its answer, held out or not: a text that tells answers would score well and teach nothing. Shorter
answers are not recognised; a number may stand in any text.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hermes.core import Message
from hermes.core.texts import most_chars
from hermes.data.curate.base import words
from hermes.errors import UsageError
from hermes.models.base import ChatRequest
from hermes.policies.text.ledger import Ledger
from hermes.safety.redact import Redactor

if TYPE_CHECKING:
    from hermes.models.base import ChatModel

_LEAK_WORDS = 8
_MOST_PROPOSED = 1_000_000
"""Characters of a file of proposals."""
_REFUSED = "\n\nYour last proposal was refused: {problem}. Propose another one."
_PROMPT = """\
An agent works on tasks. One of the texts that shape its work is `{name}`. It reads now, between the marks:
```
<curr_param>
```

These are rollouts under this text: what was asked, what the agent answered, and how that was judged.
```
<side_info>
```

Write a better text for `{name}`. Find out from the rollouts what the tasks have in common, which rules the \
judgement follows, and where the agent fails; state these as instructions that hold for tasks you have not \
seen. Keep what works. Do not copy answers of single tasks. At most {chars} characters.
Reply with the whole new text between ``` marks."""

Records = Sequence[Mapping[str, Any]]
"""Scored rollouts as a proposer is shown them."""


class Proposer(Protocol):
    @property
    def name(self) -> str: ...

    async def propose(self, name: str, current: str, records: Records) -> str | None:
        """A new text; None if there is none, or if it was refused."""
        ...


@dataclass(frozen=True)
class Guard:
    """Passages that no proposal may contain."""

    references: frozenset[tuple[str, ...]]
    redactor: Redactor

    @classmethod
    def of(cls, answers: Sequence[str], secrets: Mapping[str, str]) -> Guard:
        runs = (run for answer in answers for run in _runs(answer))
        return cls(frozenset(runs), Redactor(secrets))

    def problem(self, name: str, text: str) -> str | None:
        """Why the text is refused; None if it is not."""
        if not text.strip():
            return "it is empty"
        if len(text) > most_chars(name):
            return f"it has {len(text)} characters; {most_chars(name)} is the most"
        if self.redactor.text(text) != text:
            return "it holds a secret"
        if leak := next((run for run in _runs(text) if run in self.references), None):
            return f"it repeats a task's answer: '{' '.join(leak)}'"
        return None


def _runs(text: str) -> list[tuple[str, ...]]:
    all_words = words(text)
    starts = range(len(all_words) - _LEAK_WORDS + 1)
    return [tuple(all_words[start : start + _LEAK_WORDS]) for start in starts]


@dataclass
class ReflectingModel:
    """Proposals by a model that is shown the rollouts. A refused one is asked for again, once."""

    model: ChatModel
    ledger: Ledger
    guard: Guard
    refused: int = 0

    @property
    def name(self) -> str:
        return self.model.name

    async def propose(self, name: str, current: str, records: Records) -> str | None:
        from gepa.strategies.instruction_proposal import InstructionProposalSignature

        template = _PROMPT.format(name=name, chars=most_chars(name))
        prompt = str(
            InstructionProposalSignature.prompt_renderer(
                {
                    "current_instruction_doc": current,
                    "dataset_with_feedback": list(records),
                    "prompt_template": template,
                }
            )
        )
        problem: str | None = None
        for _ in range(2):
            answer = await self._ask(prompt + (_REFUSED.format(problem=problem) if problem else ""))
            text = InstructionProposalSignature.output_extractor(answer)["new_instruction"].strip()
            problem = self.guard.problem(name, text)
            if problem is None:
                return text
            self.refused += 1
        return None

    async def _ask(self, prompt: str) -> str:
        stored = self.ledger.proposal(prompt)
        if stored is not None:
            return stored
        reply = await self.model.complete(ChatRequest((Message.user(prompt),)))
        self.ledger.keep_proposal(prompt, reply.message.content, reply.call.cost_usd)
        answer = self.ledger.proposal(prompt)
        assert answer is not None
        return answer


@dataclass
class ListedProposals:
    """Texts that people wrote, each proposed once, in an order drawn from the seed."""

    texts: Sequence[str]
    guard: Guard
    name: str
    refused: int = 0
    _left: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path, guard: Guard, seed: int) -> ListedProposals:
        """A file of texts, with a blank line after each. UsageError if there is none."""
        if not path.is_file():
            raise UsageError(f"{path} is no file", "name a text file of proposals")
        try:
            with path.open(encoding="utf-8") as file:
                content = file.read(_MOST_PROPOSED + 1)
        except (OSError, ValueError) as error:
            raise UsageError(f"the proposals {path} cannot be read: {error}", "name a text file") from error
        if len(content) > _MOST_PROPOSED:
            raise UsageError(f"{path} has more than {_MOST_PROPOSED} characters", "propose fewer texts")
        texts = [text.strip() for text in re.split(r"\n\s*\n", content) if text.strip()]
        if not texts:
            raise UsageError(f"{path} holds no proposal", "write one text, a blank line, the next text …")
        order = random.Random(seed).sample(texts, len(texts))
        return cls(texts, guard, f"{len(texts)} proposals of {path.name}", _left=order)

    async def propose(self, name: str, current: str, records: Records) -> str | None:
        while self._left:
            text = self._left.pop()
            if text != current and self.guard.problem(name, text) is None:
                return text
            self.refused += text != current
        return None
