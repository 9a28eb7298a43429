"""The first act of the quickstart: batch, compressor, export, SFT, GRPO, and evaluations between them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hermes.quickstart.act import MODEL, Act, ActOptions, open_act
from hermes.quickstart.evaluate import PolicyEvaluation, evaluate, tokenizer
from hermes.quickstart.generate import generate
from hermes.quickstart.outcome import Point, QuickstartOutcome
from hermes.quickstart.progress import StageMeter
from hermes.quickstart.recipe import ENVIRONMENT, QuickstartRecipe
from hermes.quickstart.warm_start import export_right, step_reporter, warm_start
from hermes.rl.run import read_metrics
from hermes.rl.supervise import ports
from hermes.serving.fetch import fetch_json
from hermes.training.session import ProgressCallback

BASE, AFTER_SFT, AFTER_GRPO = "base", "after SFT", "after GRPO"
_STARVING_S = 5.0
"""A trainer that has waited this long after every environment ended will get no batch."""
_ENV_PATIENCE_S = 300.0
"""Longer than an environment takes to start on a slow machine."""


def run(options: ActOptions[QuickstartRecipe], progress: ProgressCallback) -> QuickstartOutcome:
    """Runs all stages. All processes are stopped at the end, whatever ends it."""
    with open_act("quickstart", options, progress) as act:
        return _QuickstartRun(act).run()


class _QuickstartRun:
    def __init__(self, act: Act[QuickstartRecipe]) -> None:
        self._act = act
        self._name, self._folder, self._processes = act.name, act.folder, act.processes
        self._progress = act.progress

    def run(self) -> QuickstartOutcome:
        act = self._act
        act.start_engine(while_loading=tokenizer)  # for the evaluations
        recipe, engine_url = act.recipe, act.engine_url
        base = self._evaluate(BASE, MODEL)
        with act.stage(f"{recipe.tasks} tasks with examples in the prompt, as a batch", "generate"):
            data = generate(recipe, engine_url, self._folder, self._name, self._progress)
            self._progress(f"   {data.right} of {data.trajectories} right; all of them are stored")
        with act.stage("the right ones are compressed and exported, without the examples", "export"):
            rows = export_right(self._processes, self._folder, data, self._progress)
        with act.stage(f"supervised warm start, {recipe.sft_steps} steps of {recipe.sft_batch}", "SFT"):
            warm_policy = warm_start(
                self._processes, recipe, engine_url, self._name, self._folder, rows, self._progress
            )
        warm = self._evaluate(AFTER_SFT, warm_policy.sampler)
        size = f"{recipe.rl_steps} steps of {recipe.groups} tasks × {recipe.group_size} rollouts"
        with act.stage(f"GRPO: api, trainer and environment, {size}", "GRPO"):
            learned, curve = self._reinforce(warm_policy.weights)
        policies = ((BASE, base), (AFTER_SFT, warm), (AFTER_GRPO, self._evaluate(AFTER_GRPO, learned)))
        return QuickstartOutcome(
            run_name=self._name,
            device=act.device,
            generated=data.trajectories,
            right=data.right,
            policies=policies,
            losses=warm_policy.losses,
            curve=curve,
            stages=tuple(act.stages),
            weights=learned,
            folder=self._folder,
        )

    def _evaluate(self, policy: str, weights: str) -> PolicyEvaluation:
        with self._act.stage(f"{policy}: held-out tasks, no examples", f"evaluate {policy}"):
            measured = evaluate(self._act.recipe, self._act.engine_url, weights, self._progress)
            self._progress(
                f"   {policy}: greedy {measured.greedy.mean:.1%}, sampled at temperature 1 "
                f"{measured.sampled.mean:.1%}"
            )
        return measured

    def _reinforce(self, weights: str) -> tuple[str, tuple[Point, ...]]:
        recipe, folder = self._act.recipe, self._folder / "grpo"
        api = f"http://127.0.0.1:{self._start_api()}"
        # Both at once: importing uses one core, and the environment waits for the trainer by itself.
        self._processes.start("trainer", self._trainer(weights, api, folder))
        envs = [f"env-{number}" for number in range(recipe.environments)]
        for number, name in enumerate(envs):
            self._processes.start(name, self._environment(api, number))
        self._processes.wait_until_ready("trainer", _status_has(api, "started"))
        self._processes.wait_until_ready(envs[0], _status_has(api, "envs"))
        meter = StageMeter("step", recipe.rl_steps, self._progress, set_up=True)
        show_steps = step_reporter(folder, meter, {"reward/mean": "reward"})

        def on_poll() -> None:
            show_steps()
            self._check_supply(api, envs)

        result = self._processes.finish("trainer", on_poll)
        for name in (*envs, "api"):
            self._processes.stop(name)
        return result["sampler"], reward_curve(folder / "metrics.jsonl")

    def _check_supply(self, api: str, envs: list[str]) -> None:
        """ProcessFailedError if every environment has ended and the trainer waits for another batch."""
        if not all(self._processes.has_ended(name) for name in envs):
            return
        waiting_s = ((fetch_json(f"{api}/status") or {}).get("trainer") or {}).get("waiting_s")
        if waiting_s is not None and waiting_s > _STARVING_S:
            raise self._processes.failure(envs[0], "ended before the training did, which waits for a batch")

    def _start_api(self) -> int:
        port = ports.choose(ports.API_PORT)
        self._processes.serve(
            "api",
            ("api", "--port", str(port), "--state-dir", str(self._folder / "api")),
            lambda: fetch_json(f"http://127.0.0.1:{port}/status") is not None,
        )
        return port

    def _trainer(self, weights: str, api: str, folder: Path) -> tuple[str, ...]:
        recipe = self._act.recipe
        return (
            *("train", "grpo", "--base-model", MODEL, "--service", self._act.engine_url, "--start", weights),
            *("--name", f"{self._name}-grpo", "--run-dir", str(folder), "--rank", str(recipe.rank)),
            *("--learning-rate", str(recipe.rl_rate), "--schedule", "linear"),
            *("--num-steps", str(recipe.rl_steps)),
            *("--batch-size", str(recipe.batch_size), "--api-url", api),
            *("--lease", str(recipe.lease_s), "--env-patience", str(_ENV_PATIENCE_S), "--json"),
        )

    def _environment(self, api: str, number: int) -> tuple[str, ...]:
        recipe = self._act.recipe
        settings = {
            "env.seed": 1 + number,  # other tasks than the warm start and the other environments
            "env.two_step_share": recipe.two_step_share,
            "env.reward_mode": recipe.reward_mode,
            "env.max_token_length": recipe.max_tokens,
            "env.group_size": recipe.group_size,
            "env.max_num_workers": recipe.groups // recipe.environments,
            "env.tool_pool_size": recipe.at_once // recipe.environments,
            "env.max_batches_offpolicy": 1,
            "env.total_steps": recipe.rl_steps - 1,  # the environment ends with the last batch
            "env.steps_per_eval": recipe.rl_steps + 1,
            "env.ensure_scores_are_not_same": False,  # the trainer leaves them out, but the curve counts them
            "env.rollout_server_url": api,
            "env.use_wandb": False,
            "env.stop_patience_s": 0,  # groups in progress are not needed after the trainer has ended
            "openai.base_url": f"{self._act.engine_url}/v1",
            "openai.model_name": "policy",
            "openai.server_type": "sglang",
        }
        flags = (word for name, value in settings.items() for word in (f"--{name}", str(value)))
        return ("env", "serve", ENVIRONMENT, *flags)


def _status_has(api: str, name: str) -> Callable[[], bool]:
    """Whether the trajectory API's status has a value under that key."""
    return lambda: bool((fetch_json(f"{api}/status") or {}).get(name))


def reward_curve(metrics: Path) -> tuple[Point, ...]:
    """The reward curve, out of a trainer's metrics."""
    return tuple(
        Point(int(row["step"]), row["reward/mean"], row.get("health/group_signal", 0.0))
        for row in read_metrics(metrics)
        if "reward/mean" in row
    )
