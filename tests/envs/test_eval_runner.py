"""An evaluation leaves no trace in what training counts, whatever it is gathered in."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from typing import Any

import pytest

from hermes.envs.modes.evaluate import EvalRunner
from hermes.envs.phase import current_phase


class Runner:
    """State of the framework, of which there is one."""

    def __init__(self) -> None:
        self.running_items: dict[str, Any] = {}
        self.sent = 0


class Env:
    """As environments gather their metrics: in lists, and in everything else."""

    def __init__(self) -> None:
        self.rewards = [1.0]
        self.recent: deque[float] = deque([1.0], maxlen=8)
        self.by_kind: dict[str, list[float]] = defaultdict(list, {"easy": [1.0]})
        self.nested = {"train": {"scores": [1.0]}, "eval": {"scores": [0.5]}}
        self.outcomes = Counter({"solved": 1})
        self.seen = {"a"}
        self.total, self.total_score = 1, 1.0
        self.eval_metrics: list[tuple[str, float]] = []
        self.eval_counts = Counter[str]()
        self.eval_runs = 0
        self.judge: Any = None
        self.runner = Runner()

    def score(self, reward: float) -> None:
        self.rewards.append(reward)
        self.recent.append(reward)
        self.by_kind["easy"].append(reward)
        self.by_kind["hard"].append(reward)
        self.nested["train"]["scores"].append(reward)
        self.outcomes["failed"] += 1
        self.seen.add("b")
        self.total += 1
        self.total_score += reward

    def counted(self) -> dict[str, Any]:
        names = ("rewards", "recent", "by_kind", "outcomes", "seen", "total", "total_score")
        kept = {name: getattr(self, name) for name in names}
        return {**kept, "train": self.nested["train"]}


def test_whatever_is_counted_during_an_evaluation_stays_out_of_training() -> None:
    env, untouched = Env(), Env()
    with EvalRunner(env).isolate() as view:
        assert current_phase() == "eval"
        view.score(-1000.0)
        view.rewards, view.outcomes = [-1000.0], Counter()
        assert view.total == 2, "the evaluation itself sees what it counts"
    assert current_phase() == "train"
    assert env.counted() == untouched.counted()


def test_training_goes_on_counting_while_an_evaluation_runs() -> None:
    env = Env()
    with EvalRunner(env).isolate() as view:
        view.score(-1000.0)
        env.score(0.0)
        env.eval_metrics.append(("eval/of the run", 1.0))
        view.eval_metrics.append(("eval/accuracy", 0.5))
    once = Env()
    once.score(0.0)
    assert env.counted() == once.counted()
    assert [name for name, _ in env.eval_metrics] == ["eval/of the run", "eval/accuracy"]


def test_what_says_that_it_is_an_evaluations_comes_back_and_so_do_things_made_on_first_use() -> None:
    env, judge = Env(), object()
    with EvalRunner(env).isolate() as view:
        view.eval_metrics = [("eval/accuracy", 0.5)]
        view.eval_counts["asked"] += 3
        view.eval_runs += 1
        view.nested["eval"]["scores"].append(0.25)
        view.judge, view.test_set = judge, ["held out"]  # type: ignore[attr-defined]
        view.runner.running_items["x"] = 1
        view.runner.sent += 1
    assert (env.eval_metrics, env.eval_counts["asked"], env.eval_runs) == ([("eval/accuracy", 0.5)], 3, 1)
    assert env.nested["eval"]["scores"] == [0.5, 0.25]
    assert (env.judge, vars(env)["test_set"]) == (judge, ["held out"])
    assert (env.runner.running_items, env.runner.sent) == ({"x": 1}, 1), "the framework's state is shared"


def test_metrics_of_an_evaluation_are_reported_once_if_training_reports_while_it_runs() -> None:
    env = Env()
    with EvalRunner(env).isolate() as view:
        view.eval_metrics.append(("eval/first", 0.5))
        reported, env.eval_metrics = env.eval_metrics, []
        view.eval_metrics.append(("eval/second", 1.0))
    assert [name for name, _ in [*reported, *env.eval_metrics]] == ["eval/first", "eval/second"]


def test_an_evaluation_that_fails_leaves_training_as_it_was() -> None:
    env = Env()
    with pytest.raises(KeyError), EvalRunner(env).isolate() as view:
        view.score(-1000.0)
        raise KeyError
    assert env.counted() == Env().counted()
