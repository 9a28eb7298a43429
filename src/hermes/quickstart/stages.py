"""The quickstart: the base model makes its own training data, a warm start, and a run of `hermes rl`.

The run is like any other: `hermes rl status`, `results` and `doctor`, the web app, its evaluations and its
proof of training show it. Its adapter is a named policy at the end.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from hermes.config.load import load
from hermes.core.clock import now_ms
from hermes.core.names import policy_name
from hermes.core.stats import Z_95, Interval, wilson
from hermes.errors import HermesError
from hermes.quickstart.act import LOCAL, MODEL, Act, ActOptions, open_act
from hermes.quickstart.evaluate import evaluate, tokenizer
from hermes.quickstart.generate import export_right, generate, warm_start
from hermes.quickstart.recipe import ENVIRONMENT, QuickstartRecipe
from hermes.quickstart.report import Point, QuickstartOutcome
from hermes.rl.config.resolve import find_selection, resolve
from hermes.rl.results import evaluations, saved_checkpoints, step_rows
from hermes.rl.run import RlRun, RunState
from hermes.rl.start import current_status, start, stop
from hermes.training.policy_registry import PolicyRecord, PolicyRegistry, new_policy_id
from hermes.training.session import ProgressCallback
from hermes.training.start_weights import checkpoint_folder

_POLL_S = 0.2
_BAR = 24


def run(
    options: ActOptions[QuickstartRecipe],
    progress: ProgressCallback,
    *,
    seed: int = 0,
    show: Callable[[str], None] = lambda page: None,
) -> QuickstartOutcome:
    """Runs all stages. All processes are stopped at the end, whatever ends it.

    `show` is called with the path of the run's page in the web app.
    """
    with open_act("quickstart", options, progress) as act:
        return _QuickstartRun(act, seed, show).run()


class _QuickstartRun:
    def __init__(self, act: Act[QuickstartRecipe], seed: int, show: Callable[[str], None]) -> None:
        self._act, self._seed, self._show = act, seed, show

    def run(self) -> QuickstartOutcome:
        act, recipe = self._act, self._act.recipe
        act.start_engine(recipe.engine_gib, recipe.kv_gib, while_loading=tokenizer)
        heading = f"the base model tries {recipe.tasks} sums with examples, and {recipe.eval_tasks} without"
        with act.stage(heading, "generate"), ThreadPoolExecutor(1) as evaluating:
            measuring = evaluating.submit(evaluate, recipe, act.engine_url, MODEL, f"{act.name}-base")
            data = generate(recipe, act.engine_url, act.folder, act.name, act.progress)
            base = measuring.result()
            act.progress(f"   {data.right} of {data.trajectories} right with examples, all of them stored")
            act.progress(f"   {base.mean:.0%} right without: it calls no tool")
        with act.stage(f"supervised warm start on the right ones, {recipe.sft_steps} steps", "SFT"):
            rows = export_right(act.processes, act.folder, data)
            warm = warm_start(
                *(act.processes, recipe, act.engine_url, act.name, act.folder, rows, act.progress),
                seed=self._seed,
            )
            act.processes.stop("engine")  # the run has its own
        size = f"{recipe.rl_steps} steps of {recipe.groups} sums × {recipe.group_size} tries"
        with act.stage(f"reinforcement learning, {size}", "RL"):
            rl_run = self._start_run(checkpoint_folder(act.folder / "engine", warm.weights))
            self._watch(rl_run)
        measured = {row["step"]: _success(row) for row in evaluations(rl_run)}
        return QuickstartOutcome(
            run_name=rl_run.run_id,
            device=act.device,
            generated=data.trajectories,
            right=data.right,
            evaluations=(
                ("base model", base),
                ("after the warm start", measured[0]),
                ("after learning", measured[recipe.rl_steps]),
            ),
            curve=reward_curve(rl_run),
            stages=tuple(act.stages),
            policy=_register(rl_run, measured[recipe.rl_steps]),
            folder=act.folder,
        )

    def _start_run(self, weights: Path) -> RlRun:
        act = self._act
        environ = {**os.environ, **LOCAL}
        config = load({"rl.device": act.device, "rl.model": MODEL}, environ)
        values = {**act.recipe.run_values(1 + self._seed), "tinker.start_from": str(weights)}
        selection = find_selection(config, ENVIRONMENT)
        resolved = resolve(config, replace(selection, edits={**selection.edits, **values}))
        rl_run = start(config, resolved, name=act.name)
        self._show(f"/runs/{rl_run.run_id}")
        return rl_run

    def _watch(self, rl_run: RlRun) -> None:
        """Prints a line a step until the run has ended. HermesError if it failed."""
        printed = 0
        try:
            while True:
                status = current_status(rl_run)
                for point in reward_curve(rl_run)[printed:]:
                    self._act.progress(step_line(point, self._act.recipe.rl_steps))
                    printed += 1
                if status.state.ended:
                    break
                time.sleep(_POLL_S)
        except BaseException:
            stop(rl_run, now=True)
            raise
        if status.state is not RunState.COMPLETED:
            raise HermesError(
                f"run {rl_run.run_id}: {status.reason or status.state.value}",
                f"hermes rl doctor {rl_run.run_id}",
            )


def reward_curve(rl_run: RlRun) -> tuple[Point, ...]:
    """The mean reward of each step, with its interval."""
    return tuple(Point(int(row["step"]), _reward(row)) for row in step_rows(rl_run))


def _reward(row: dict[str, float]) -> Interval:
    """Wilson's interval if the rewards of the step are 0 or 1, otherwise that of a normal distribution."""
    mean, tries = row["reward/mean"], round(row["data/rollouts"])
    if abs(row["reward/positive"] - mean) < 1e-9:
        return wilson(round(mean * tries), tries)
    half = Z_95 * row["reward/std"] / math.sqrt(tries)
    return Interval(mean, max(0.0, mean - half), min(1.0, mean + half), tries, "normal")


def step_line(point: Point, steps: int) -> str:
    """A step of the run with a bar of its reward."""
    reward = point.reward
    bar = "█" * round(_BAR * reward.mean)
    return (
        f"   step {point.step:>2}/{steps}  {bar:·<{_BAR}}  {reward.mean:4.0%}"
        f"  ({reward.low:.0%} to {reward.high:.0%})"
    )


def _success(row: dict[str, float]) -> Interval:
    """The success rate of an evaluation; its samples are 0 or 1."""
    samples = round(row["eval/samples"])
    return wilson(round(row["eval/success_rate"] * samples), samples)


def _register(rl_run: RlRun, success: Interval) -> str:
    """Makes the adapter a policy, and returns its name."""
    checkpoint = saved_checkpoints(rl_run)[-1]
    name = policy_name(rl_run.run_id, checkpoint["step"])
    record = PolicyRecord(
        new_policy_id(),
        MODEL,
        checkpoint["weights"],
        checkpoint["path"],
        run_id=rl_run.run_id,
        method="grpo",
        facts={"held_out_success": success.mean, "held_out_tasks": success.n},
        created_at_ms=now_ms(),
        name=name,
    )
    PolicyRegistry(rl_run.home).add(record)
    return name
