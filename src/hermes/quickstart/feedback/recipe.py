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
_REWARD_PAIR = Cost(0.0, 0.42)
_RLHF_ANSWER = Cost(0.1, 0.4)
"""One answer that is sampled, scored and trained on."""


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
    kto_steps: int
    kto_rate: float
    reward_steps: int
    reward_rate: float
    rl_steps: int
    rl_batch: int
    """Answers a step."""
    rl_group: int
    """Answers to each prompt."""
    rl_rate: float
    batch: int = 16
    """Pairs, or rated answers, a step."""
    beta: float = 0.1
    kto_beta: float = 0.1
    good_rating: float = 5.0
    """KTO: answers with at least as many stars are good ones, all others bad. With 4 as well, an answer that
    misses one of the three things that the person likes would be as good as one that has them all."""
    replay_weight: float = 1.0
    """DPO and KTO: of the rows of an earlier skill, if there are any; 0: they are not used."""
    sft_weight: float = 0.5
    """Against a falling probability of both sides: the liked style is rare in the model's own answers."""
    kl: float = 0.05
    rank: int = 32
    answer_tokens: int = 32
    max_tokens: int = 512
    """Longest sequence in training."""
    environments: int = 1
    at_once: int = 64
    eval_share: float = 0.2
    rlhf: bool = True
    """Also a reward model and RLHF against it, which take twice as long as DPO."""
    evaluations: int = 4
    """On held-out pairs, during DPO or the training of the reward model."""

    def estimate_s(self, pace_s: float) -> float:
        """How long the whole recipe takes at this pace."""
        answers = (3 if self.rlhf else 2) * self.held_out + 2 * self.samples * self.questions
        reward_pairs, rl_answers = self.reward_steps * self.batch, self.rl_steps * self.rl_batch
        rlhf_s = reward_pairs * _REWARD_PAIR.at(pace_s) + rl_answers * _RLHF_ANSWER.at(pace_s)
        return (
            _START_S
            + answers * _ANSWER.at(pace_s)
            + self.questions * _QUESTION.at(pace_s)
            + self.dpo_steps * self.batch * _DPO_PAIR.at(pace_s)
            + (rlhf_s if self.rlhf else 0.0)
        )

    @property
    def size(self) -> str:
        dpo = f"{self.dpo_steps} steps of DPO"
        more = f", {self.reward_steps} of the reward model and {self.rl_steps} of RLHF"
        return dpo + (more if self.rlhf else "")

    def answers(self, seed: int) -> AnswerPlan:
        return AnswerPlan(self.samples, self.answer_tokens, 0.8, self.at_once, seed)


CPU = FeedbackRecipe(
    questions=32,
    held_out=24,
    samples=2,
    dpo_steps=10,
    dpo_rate=1e-3,
    kto_steps=10,
    kto_rate=1e-3,
    reward_steps=12,
    reward_rate=1e-3,
    rl_steps=6,
    rl_batch=32,
    rl_group=8,
    rl_rate=5e-4,
)
SHORT = replace(CPU, questions=24, dpo_steps=6, batch=12, evaluations=2, rlhf=False)
"""Ratings and DPO: what five minutes are enough for."""
FAST = replace(
    CPU,
    questions=8,
    held_out=4,
    dpo_steps=2,
    kto_steps=2,
    reward_steps=2,
    rl_steps=2,
    rl_batch=8,
    rl_group=4,
    batch=4,
    answer_tokens=16,
)
"""Every stage once, too briefly to learn."""
CUDA = FeedbackRecipe(
    questions=512,
    held_out=256,
    samples=3,
    dpo_steps=50,
    dpo_rate=3e-4,
    kto_steps=60,
    kto_rate=3e-4,
    reward_steps=60,
    reward_rate=5e-4,
    rl_steps=25,
    rl_batch=128,
    rl_group=8,
    rl_rate=3e-4,
    batch=32,
    environments=4,
    at_once=256,
)


def choose(*, fast: bool, cuda: bool, full: bool = False) -> FeedbackRecipe:
    """The recipe for a machine."""
    if fast:
        return FAST
    if cuda:
        return CUDA
    return CPU if full else SHORT
