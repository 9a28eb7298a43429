"""The sizes of the feedback act: minutes on two CPU cores, seconds for a test, more on a GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hermes.quickstart.feedback.answers import AnswerPlan
from hermes.quickstart.pace import Cost

_START_S = 75.0
"""Starting the processes of all stages."""
_ANSWER = Cost(0.1, 0.045)
"""One answer that is only sampled."""
_QUESTION = Cost(0.3, 0.12)
"""The answers to one question under the reference of DPO."""
_DPO_PAIR = Cost(0.0, 0.25)
"""One pair in one step."""


@dataclass(frozen=True, slots=True)
class FeedbackRecipe:
    questions: int
    """Questions whose answers are rated."""
    held_out: int
    """Questions on which policies are compared, and whose answers nobody rates."""
    samples: int
    """Answers to each question, of each of two styles."""
    dpo_steps: int
    dpo_rate: float
    batch: int = 16
    """Pairs a step."""
    beta: float = 0.1
    replay_weight: float = 1.0
    """DPO: of the rows of an earlier skill, if there are any; 0: they are not used."""
    sft_weight: float = 0.5
    """Against a falling probability of both sides: the liked style is rare in the model's own answers."""
    rank: int = 32
    answer_tokens: int = 32
    max_tokens: int = 512
    """Longest sequence in training."""
    at_once: int = 64
    eval_share: float = 0.2
    evaluations: int = 4
    """On held-out pairs, during DPO."""

    def estimate_s(self, pace_s: float) -> float:
        """How long the whole recipe takes at this pace."""
        answers = 2 * self.held_out + 2 * self.samples * self.questions
        return (
            _START_S
            + answers * _ANSWER.at(pace_s)
            + self.questions * _QUESTION.at(pace_s)
            + self.dpo_steps * self.batch * _DPO_PAIR.at(pace_s)
        )

    @property
    def size(self) -> str:
        return f"{self.dpo_steps} steps of DPO"

    def answers(self, seed: int) -> AnswerPlan:
        return AnswerPlan(self.samples, self.answer_tokens, 0.8, self.at_once, seed)


CPU = FeedbackRecipe(
    questions=24, held_out=24, samples=2, dpo_steps=6, dpo_rate=1e-3, batch=12, evaluations=2
)
"""The sizes that five minutes are enough for."""
FAST = replace(CPU, questions=8, held_out=4, dpo_steps=2, batch=4, answer_tokens=16, evaluations=4)
"""Every stage once, too briefly to learn."""
CUDA = FeedbackRecipe(
    questions=512, held_out=256, samples=3, dpo_steps=50, dpo_rate=3e-4, batch=32, at_once=256
)


def choose(*, fast: bool, cuda: bool) -> FeedbackRecipe:
    """The recipe for a machine."""
    if fast:
        return FAST
    return CUDA if cuda else CPU
