"""Evaluations while a run is under way: they are logged, and they alone decide which checkpoint is best."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hermes.core.names import policy_name
from hermes.training.checkpoints import (
    CheckpointRecord,
    RetentionPolicy,
    TrainingState,
    add_checkpoint,
    update_score,
)
from hermes.training.monitor.evaluations import EvalWatcher, command_evaluation, environments_evaluation
from hermes.training.rl import train
from tests.training.conftest import MakeRun, StartTrainer
from tests.training.rl_runs import feeding, services, settings
from tests.training.world import Environment, metrics


def test_evaluations_are_logged_and_decide_the_best_checkpoint(
    make_run: MakeRun, environment: Environment
) -> None:
    run = make_run(every=1)
    told = {0: 0.05, 1: 0.1, 2: 0.9, 3: 0.5}
    with feeding(environment):
        given = settings(environment.api_url, 3, eval_every=1)
        done = train(run, given, services(run, evaluate=lambda step, sampler: {"reward": told[step]}))
    assert [row["eval/reward"] for row in metrics(run.folder)] == [0.05, 0.1, 0.9, 0.5]
    assert [row["step"] for row in metrics(run.folder)] == [0, 1, 2, 3], "row 0 is the baseline"
    assert done.best is not None and done.best.step == 2


def test_a_run_whose_evaluation_stops_rising_ends_there(make_run: MakeRun, environment: Environment) -> None:
    run = make_run()
    told = [0.1, 0.2, 0.5, 0.4, 0.5, 0.3]
    with feeding(environment):
        given = settings(environment.api_url, 20, eval_every=1, patience=2)
        done = train(run, given, services(run, evaluate=lambda step, sampler: {"reward": told[step]}))
    assert (done.step, done.reason) == (4, "the evaluation stopped rising")
    assert done.best is not None and (done.best.step, done.best.value) == (2, 0.5)


def test_only_evaluations_decide_what_is_best_where_there_are_some(
    make_run: MakeRun, environment: Environment
) -> None:
    """Checkpoints come every 2 steps and evaluations every 3: none is judged by its training reward, and what
    was evaluated is a checkpoint."""
    run = make_run(every=2)
    told = {0: -1.0, 2: -0.4, 3: -0.1, 4: -0.2, 6: -0.3}  # all rewards in training are higher
    with feeding(environment):
        given = settings(environment.api_url, 6, eval_every=3)
        done = train(run, given, services(run, evaluate=lambda step, sampler: {"reward": told[step]}))
    assert {row["step"]: row["eval/reward"] for row in metrics(run.folder) if "eval/reward" in row} == told
    assert done.best is not None and (done.best.step, done.best.value) == (3, -0.1)


def test_an_evaluation_that_fails_at_a_checkpoint_does_not_make_it_the_best(
    make_run: MakeRun, environment: Environment
) -> None:
    run = make_run(every=1)
    with feeding(environment):
        found = services(
            run, evaluate=lambda step, sampler: {"failed": 1} if step == 2 else {"reward": -step}
        )
        done = train(run, settings(environment.api_url, 2), found)
    assert done.best is not None and done.best.step == 1


def test_a_command_is_told_the_weights_and_its_last_line_is_what_it_found() -> None:
    said: list[str] = []
    script = (
        'echo "looking at $HERMES_EVAL_RUN"; echo \'{"reward": 9}\'; '
        'echo "{\\"reward\\": 0.5, \\"step\\": $HERMES_EVAL_STEP, \\"passed\\": true, '
        '\\"sampler\\": \\"$HERMES_EVAL_SAMPLER\\"}" | cat'
    )
    found = command_evaluation(script, "r1", said.append)(7, "tinker://x/sampler_weights/step-7")
    assert found == {"reward": 0.5, "step": 7, "passed": 1.0} and not said


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("echo no such set >&2; exit 3", "no such set"),
        ("exit 3", "exit code 3"),
        ("echo done", "its last line is no JSON object"),
        ("echo 0.5", "its last line is no JSON object"),
        ("true", "its last line is no JSON object"),
    ],
)
def test_a_command_that_fails_is_counted_and_said_and_the_run_goes_on(command: str, why: str) -> None:
    said: list[str] = []
    assert command_evaluation(command, "r1", said.append)(7, "s") == {"failed": 1.0}
    assert said == [f"step 7: the evaluation failed: {why}"]


ENVIRONMENT_FILE = """
from hermes.envs.agent.env import HermesAgentBaseEnv


class SomeEnv(HermesAgentBaseEnv):
    name = "some"

    async def setup(self): ...

    async def get_next_item(self):
        return {}

    def format_prompt(self, item):
        return "Say something."

    async def compute_reward(self, item, result, ctx):
        return 0.0
"""
OWN_EVALUATION = """
    async def evaluate(self):
        print("recorded as", self.rollout_context().new_model().name, "in", self.run_id)
        await self.evaluate_log(metrics={"eval/score": 0.5})
"""


def test_an_environment_without_held_out_tasks_is_not_evaluated_and_others_are(tmp_path: Path) -> None:
    lines: list[str] = []
    config = tmp_path / "config.yaml"
    server = "base_url: http://127.0.0.1:9/v1\n  model_name: policy\n  server_type: openai"
    config.write_text(f"openai:\n- {server}\n  health_check: false\n")
    empty, measured = tmp_path / "empty.py", tmp_path / "measured.py"
    empty.write_text(ENVIRONMENT_FILE)
    measured.write_text(ENVIRONMENT_FILE + OWN_EVALUATION)
    alone = environments_evaluation([(empty, config)], tmp_path / "alone", lines.append, _name)
    assert alone(1, "s") == alone(2, "s") == {}, lines
    assert lines == ["some has no tasks to evaluate: the run goes on without an evaluation"]
    both_files = [(empty, config), (measured, config)]
    both = environments_evaluation(both_files, tmp_path / "both", lines.append, _name)
    assert both(1, "s") == {"score": 0.5, "measured/score": 0.5}, lines
    log = (tmp_path / "both/measured/step-1/log.txt").read_text()
    assert "recorded as sums@step-1 in sums@step-1-eval" in log, log


def _name(step: int) -> str:
    return policy_name("sums", step)


@pytest.mark.slow
def test_a_command_evaluates_what_the_trainer_has_published(
    start: StartTrainer, environment: Environment, tmp_path: Path
) -> None:
    """As a person starts it: the weights that it names can be sampled while it runs."""
    script = tmp_path / "evaluate.py"
    script.write_text(
        "import json, os, urllib.request\n"
        "body = {'model': os.environ['HERMES_EVAL_SAMPLER'], 'prompt': [5, 6, 7], 'max_tokens': 2}\n"
        "asked = urllib.request.Request(os.environ['TINKER_BASE_URL'] + '/v1/completions',\n"
        "    json.dumps(body).encode(), {'Content-Type': 'application/json'})\n"
        "told = json.load(urllib.request.urlopen(asked, timeout=60))\n"
        "print(json.dumps({'reward': float(os.environ['HERMES_EVAL_STEP']),\n"
        "    'tokens': told['usage']['completion_tokens']}))\n"
    )
    given = ("--name", "r", "--num-steps", "2", "--batch-size", "4", "--api-url", environment.api_url)
    with feeding(environment, groups=1):
        process = start(
            "grpo", *given, "--eval-every", "1", "--eval-command", f"{sys.executable} {script}", "--json"
        )
        assert process.wait() == 0, process.output
    rows = metrics(tmp_path / "home" / "runs" / "r")
    assert [(row["eval/reward"], row["eval/tokens"]) for row in rows] == [(0, 2), (1, 2), (2, 2)]
    best = json.loads(process.output.splitlines()[-1])["best"]
    assert (best["step"], best["value"]) == (2, 2.0)


def evaluation(folder: Path, took_s: float, ended_s: float | None = None, **found: float) -> None:
    """As an environment leaves it when it has ended; None: just now."""
    folder.mkdir(exist_ok=True)
    general = {"total_evaluation_time_seconds": str(took_s)}
    written = {"config_general": general, "results": {"all": {f"eval/{k}": v for k, v in found.items()}}}
    path = folder / "metrics.json"
    path.write_text(json.dumps(written))
    if ended_s is not None:
        os.utime(path, (ended_s, ended_s))


def test_the_environments_own_evaluation_is_told_once_with_the_step_it_began_with(tmp_path: Path) -> None:
    evaluation(tmp_path, 0, mean_reward=0.9)
    watcher = EvalWatcher(tmp_path)
    assert watcher.poll() is None, "it is of another life"
    for step in (0, 1):
        watcher.record_published(step)
    began_s = time.time()
    evaluation(tmp_path, 0, began_s, mean_reward=0.25, success_rate=0.5)
    time.sleep(0.01)
    watcher.record_published(2)
    assert watcher.poll() == (1, 0.25, {"eval/mean_reward": 0.25, "eval/success_rate": 0.5})
    assert watcher.poll() is None
    evaluation(tmp_path, 60, began_s + 60, success_rate=0.75)
    assert watcher.poll() == (1, 0.75, {"eval/success_rate": 0.75}), "its weights are those of when it began"
    evaluation(tmp_path, 3600, success_rate=0.75)
    assert watcher.poll() is None
    (tmp_path / "metrics.json").write_text("{")
    assert watcher.poll() is None and EvalWatcher(None).poll() is None


def test_an_evaluation_counts_before_any_reward_of_training() -> None:
    kept = tuple(CheckpointRecord(step, f"w{step}", f"s{step}", 0.1 * step) for step in (4, 6, 8))
    state = TrainingState("rl", {}, kept, CheckpointRecord(2, "w2", "s2", 0.9))
    state, gone = update_score(state, 6, 0.2, higher_is_better=True)
    assert state.best == CheckpointRecord(6, "w6", "s6", 0.2, True) == state.kept[1] and [
        one.step for one in gone
    ] == [2]
    state, gone = update_score(state, 6, 0.9, higher_is_better=True)
    assert state.best is not None and state.best.value == 0.2, "the checkpoint has its evaluation"
    state, gone = update_score(state, 8, 0.1, higher_is_better=True)
    assert state.best is not None and state.best.step == 6 and state.kept[2].evaluated and not gone
    state, _ = add_checkpoint(
        state, CheckpointRecord(10, "w10", "s10", 5.0), RetentionPolicy(2, 3), higher_is_better=True
    )
    assert state.best is not None and state.best.step == 6
    assert update_score(state, 3, 1.0, higher_is_better=True) == (state, [])
    assert update_score(state, 9, 1.0, higher_is_better=True) == (state, []), (
        "no checkpoint has these weights"
    )


def test_what_the_environment_found_on_held_out_tasks_decides_which_checkpoint_is_kept(
    make_run: MakeRun, environment: Environment, tmp_path: Path
) -> None:
    """The environment evaluates the second step's weights while later steps are made; these earn more."""
    run, evals = make_run(every=2, last=1), tmp_path / "evals"

    def tell(line: str) -> None:
        if line.startswith("step 2/"):
            evaluation(evals, 0, mean_reward=-1.0)

    with feeding(environment):
        found = replace(services(run, eval_watcher=EvalWatcher(evals)), progress=tell)
        done = train(run, settings(environment.api_url, 6), found)
    assert done.best is not None and (done.best.step, done.best.value) == (2, -1.0)
    assert done.step == 6
    (row,) = [row for row in metrics(run.folder) if "eval/mean_reward" in row]
    assert (row["step"], row["eval/step"], row["eval/mean_reward"]) == (3, 2, -1)
