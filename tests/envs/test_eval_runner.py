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

    eval_attributes = ("eval_metrics", "eval_counts", "eval_runs", "eval_by_kind")

    def __init__(self) -> None:
        self.rewards = [1.0]
        self.recent: deque[float] = deque([1.0], maxlen=8)
        self.by_kind: dict[str, list[float]] = defaultdict(list, {"easy": [1.0]})
        self.nested = {"train": {"scores": [1.0]}}
        self.eval_by_kind = {"easy": {"scores": [0.5]}}
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
        names = ("rewards", "recent", "by_kind", "nested", "outcomes", "seen", "total", "total_score")
        return {name: getattr(self, name) for name in names}


def test_whatever_is_counted_during_an_evaluation_stays_out_of_training() -> None:
    env, untouched = Env(), Env()
    with EvalRunner(env).open_view() as view:
        assert current_phase() == "eval"
        view.score(-1000.0)
        view.rewards, view.outcomes = [-1000.0], Counter()
        assert view.total == 2, "the evaluation itself sees what it counts"
    assert current_phase() == "train"
    assert env.counted() == untouched.counted()


def test_training_goes_on_counting_while_an_evaluation_runs() -> None:
    env = Env()
    with EvalRunner(env).open_view() as view:
        view.score(-1000.0)
        env.score(0.0)
        env.eval_metrics.append(("eval/of the run", 1.0))
        view.eval_metrics.append(("eval/accuracy", 0.5))
    once = Env()
    once.score(0.0)
    assert env.counted() == once.counted()
    assert [name for name, _ in env.eval_metrics] == ["eval/of the run", "eval/accuracy"]


def test_declared_results_and_objects_made_on_first_use_are_set_on_the_environment() -> None:
    env, judge = Env(), object()
    with EvalRunner(env).open_view() as view:
        view.eval_metrics = [("eval/accuracy", 0.5)]
        view.eval_counts["asked"] += 3
        view.eval_runs += 1
        view.eval_by_kind["easy"]["scores"].append(0.25)
        view.judge, view.test_set = judge, ["held out"]  # type: ignore[attr-defined]
        assert env.judge is judge, "at once, while the evaluation runs"
        view.runner.running_items["x"] = 1
        view.runner.sent += 1
    assert (env.eval_metrics, env.eval_counts["asked"], env.eval_runs) == ([("eval/accuracy", 0.5)], 3, 1)
    assert env.eval_by_kind["easy"]["scores"] == [0.5, 0.25]
    assert (env.judge, vars(env)["test_set"]) == (judge, ["held out"])
    assert (env.runner.running_items, env.runner.sent) == ({"x": 1}, 1), "the framework's state is shared"


def test_metrics_of_an_evaluation_are_reported_once_if_training_reports_while_it_runs() -> None:
    env = Env()
    with EvalRunner(env).open_view() as view:
        view.eval_metrics.append(("eval/first", 0.5))
        reported, env.eval_metrics = env.eval_metrics, []
        view.eval_metrics.append(("eval/second", 1.0))
    assert [name for name, _ in [*reported, *env.eval_metrics]] == ["eval/first", "eval/second"]


def test_an_evaluation_that_fails_leaves_training_as_it_was() -> None:
    env = Env()
    with pytest.raises(KeyError), EvalRunner(env).open_view() as view:
        view.score(-1000.0)
        raise KeyError
    assert env.counted() == Env().counted()


def test_the_view_is_an_object_of_the_environments_class() -> None:
    class Named(Env):
        judge_name = "none"

        @property
        def half(self) -> float:
            return self.total / 2

        @half.setter
        def half(self, value: float) -> None:
            self.total = int(2 * value)

        def describe(self) -> str:
            return f"{type(self).__name__} {self.total}"

    env = Named()
    with EvalRunner(env).open_view() as view:
        env.total, env.judge_name = 7, "strict"
        assert (view.judge_name, view.half) == ("strict", 3.5), "not the default of the class"
        assert isinstance(view, Named) and view.describe() == "Named 7", "what training set meanwhile is read"
        view.half = 4.0
        assert view.total == 8 and env.total == 7, "a property sets the evaluation's own value"
        del view.total
        assert view.total == 7
        with pytest.raises(AttributeError, match="absent"):
            _ = view.absent  # type: ignore[attr-defined]
    assert env.total == 7


def test_changes_of_undeclared_metrics_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    class Undeclared(Env):
        eval_attributes = ()

    runner = EvalRunner(Undeclared())
    for _ in range(2):
        with caplog.at_level("INFO"), runner.open_view() as view:
            view.eval_metrics.append(("eval/accuracy", 0.5))
            view.total += 1
            assert view.recent, "read and not changed"
    [record] = caplog.records
    message = record.getMessage()
    assert "self.eval_metrics, self.total;" in message and "eval_attributes of Undeclared" in message
