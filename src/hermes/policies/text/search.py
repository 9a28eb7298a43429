"""The search for better texts: GEPA's evolution over a Pareto front, on our tasks, rollouts and ledger.

The package `gepa` chooses which candidate is changed and which survive; this module tells it how a candidate
is scored and where a proposal comes from. It runs in a thread of its own and hands every rollout to the event
loop, so that a minibatch is scored at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hermes.core.texts import Texts
from hermes.errors import MissingDependencyError
from hermes.policies.text.ledger import Ledger
from hermes.policies.text.proposals import Proposer
from hermes.policies.text.signal import TaskScore, TextSignal, TextTask

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from gepa.core.adapter import EvaluationBatch

_SHOWN = 4
"""Rollouts of a minibatch, which a reflection is shown."""
_SHOWN_CHARS = 4_000
_IDLE = 12
"""Proposals in a row that cost nothing: nothing is left to try."""


@dataclass
class Evaluator:
    """Scores texts on tasks, each pair once, several at a time."""

    signal: TextSignal
    ledger: Ledger
    at_once: int
    _slots: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.at_once)

    async def scores(self, texts: Texts, tasks: Sequence[TextTask]) -> list[TaskScore]:
        running = [asyncio.create_task(self._score(texts, task)) for task in tasks]
        try:
            return await asyncio.gather(*running)
        except BaseException:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            raise

    async def _score(self, texts: Texts, task: TextTask) -> TaskScore:
        async with self._slots:
            if self.ledger.score(texts, task) is None:
                self.ledger.keep_score(texts, task, await self.signal.score(texts, task))
        score = self.ledger.score(texts, task)
        assert score is not None
        return score


@dataclass(frozen=True)
class SearchResult:
    best: dict[str, str]
    """Only the texts that were searched for."""
    candidates: int
    """Those that were kept on the way, the first one included."""
    first_score: float
    """Mean score of the first one on the tasks that choose."""
    best_score: float


async def search(
    seed_texts: Texts,
    unchanged: Texts,
    train: Sequence[TextTask],
    chosen_by: Sequence[TextTask],
    evaluator: Evaluator,
    proposer: Proposer,
    seed: int,
) -> SearchResult:
    """The texts with the best mean score on `chosen_by`; proposals come from rollouts on `train`.

    `others` are texts of the policy that stay as they are.
    """
    try:
        from gepa.api import optimize
    except ImportError as error:
        raise MissingDependencyError("gepa", "text", "The search for better texts") from error

    loop = asyncio.get_running_loop()
    adapter: Any = _Adapter(loop, evaluator, proposer, unchanged)
    stop = _Stop(evaluator.ledger)

    def run() -> Any:
        return optimize(
            seed_candidate=dict(seed_texts),
            trainset=list(train),
            valset=list(chosen_by),
            adapter=adapter,
            reflection_minibatch_size=min(_SHOWN, len(train)),
            stop_callbacks=stop,
            logger=_Quiet(),
            seed=seed,
        )

    result = await asyncio.to_thread(run)
    scores = result.val_aggregate_scores
    best = max(range(len(scores)), key=lambda index: (scores[index], -index))  # the oldest of the best
    return SearchResult(dict(result.candidates[best]), len(scores), scores[0], scores[best])


@dataclass(frozen=True)
class _Adapter:
    """GEPA's adapter protocol."""

    loop: asyncio.AbstractEventLoop
    evaluator: Evaluator
    proposer: Proposer
    others: Texts

    def evaluate(
        self, batch: list[TextTask], candidate: dict[str, str], capture_traces: bool = False
    ) -> EvaluationBatch[Any, Any]:
        from gepa.core.adapter import EvaluationBatch

        scores = self._wait(self.evaluator.scores({**self.others, **candidate}, batch))
        return EvaluationBatch(
            outputs=[score.answer for score in scores],
            scores=[score.score for score in scores],
            trajectories=list(zip(batch, scores, strict=True)) if capture_traces else None,
        )

    def make_reflective_dataset(
        self,
        candidate: dict[str, str],
        eval_batch: EvaluationBatch[Any, Any],
        components_to_update: list[str],
    ) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        records = [_record(task, score) for task, score in eval_batch.trajectories or ()]
        return dict.fromkeys(components_to_update, records)

    def propose_new_texts(
        self,
        candidate: dict[str, str],
        reflective_dataset: Mapping[str, Sequence[Mapping[str, Any]]],
        components_to_update: list[str],
    ) -> dict[str, str]:
        return {
            name: self._wait(self.proposer.propose(name, candidate[name], reflective_dataset[name]))
            or candidate[name]
            for name in components_to_update
        }

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()


def _record(task: TextTask, score: TaskScore) -> dict[str, str]:
    return {
        "Asked": _clip(task.prompt),
        "Answered": _clip(score.answer) or "(nothing)",
        "Judged": f"score {score.score:g}. {_clip(score.feedback)}",
    }


def _clip(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + " …"


@dataclass
class _Stop:
    """Ends the search when its budget is spent, or when nothing new is tried any more."""

    ledger: Ledger
    _last: int = -1
    _idle: int = 0

    def __call__(self, gepa_state: object) -> bool:
        calls = self.ledger.spending.calls
        self._idle = self._idle + 1 if calls == self._last else 0
        self._last = calls
        return self.ledger.spending.reached or self._idle >= _IDLE


class _Quiet:
    """GEPA's own lines are not ours to print."""

    def log(self, message: str) -> None:
        pass
