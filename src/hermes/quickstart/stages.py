"""The stages of a quickstart: engine, batch, compressor, export, trainer, environment, evaluation.

One engine process samples and trains. A stage is an ordinary Hermes command where there is one, with its log
in the output folder, so that it can be repeated by hand.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from hermes.disk.files import ensure_dir
from hermes.errors import HermesError
from hermes.quickstart import pace
from hermes.quickstart.engine_metrics import engine_tokens
from hermes.quickstart.evaluate import PolicyEvaluation, evaluate, tokenizer
from hermes.quickstart.generate import generate
from hermes.quickstart.outcome import EngineTokens, Point, QuickstartOutcome, Stage
from hermes.quickstart.progress import StageMeter
from hermes.quickstart.recipe import ENVIRONMENT, MODEL, QuickstartRecipe
from hermes.quickstart.warm_start import export_right, step_reporter, warm_start
from hermes.rl.process import fetch_json
from hermes.rl.run import read_metrics
from hermes.rl.supervise import ports
from hermes.rl.supervise.process_group import ProcessGroup, sigterm_as_interrupt
from hermes.training.session import ProgressCallback

BASE, AFTER_SFT, AFTER_GRPO = "base", "after SFT", "after GRPO"
_STARVING_S = 5.0
"""A trainer that has waited this long after every environment ended will get no batch."""
_ENV_PATIENCE_S = 300.0
"""Longer than an environment takes to start on a slow machine."""
_LOCAL = {
    "TINKER_API_KEY": "tml-local",
    "HERMES_ENGINE_TOKEN": "",
    "HERMES_API_TOKEN": "",
    "WANDB_API_KEY": "",
}
"""No account of the user is used: everything stays on this machine."""


@dataclass(frozen=True, slots=True)
class QuickstartOptions:
    recipes: tuple[QuickstartRecipe, ...]
    """Largest first; on a CPU the machine's pace decides which one is used."""
    device: str
    """cpu or cuda."""
    output: Path
    """The folder in which the folder of this quickstart is created."""
    engine_replicas: int = 1
    """Worker processes of the engine."""


def run(options: QuickstartOptions, progress: ProgressCallback) -> QuickstartOutcome:
    """Runs all stages. All processes are stopped at the end, whatever ends it."""
    name = f"quickstart-{datetime.now():%Y%m%d-%H%M%S}"
    folder = ensure_dir(options.output.absolute() / name)
    progress(f"everything is written to {folder}")
    with sigterm_as_interrupt(), ProcessGroup(folder / "logs", folder, _LOCAL) as processes:
        return _QuickstartRun(options, name, folder, processes, progress).run()


class _QuickstartRun:
    def __init__(
        self,
        options: QuickstartOptions,
        name: str,
        folder: Path,
        processes: ProcessGroup,
        progress: ProgressCallback,
    ) -> None:
        self._recipes, self._device = options.recipes, options.device
        self._engine_replicas = options.engine_replicas
        self._recipe = options.recipes[0]
        self._name, self._folder, self._processes, self._progress = name, folder, processes, progress
        self._engine_url = ""
        self._stages: list[Stage] = []

    def run(self) -> QuickstartOutcome:
        with self._stage(f"the engine loads {MODEL} on {self._device}", "start"):
            self._start_engine()
            recipe = self._recipe = self._fitting_recipe()
        base = self._evaluate(BASE, MODEL)
        with self._stage(f"{recipe.tasks} tasks with examples in the prompt, as a batch", "generate"):
            data = generate(recipe, self._engine_url, self._folder, self._name, self._progress)
            self._progress(f"   {data.right} of {data.trajectories} right; all of them are stored")
        with self._stage("the right ones are compressed and exported, without the examples", "export"):
            rows = export_right(self._processes, self._folder, data, self._progress)
        with self._stage(f"supervised warm start, {recipe.sft_steps} steps of {recipe.sft_batch}", "SFT"):
            warm_policy = warm_start(
                self._processes, recipe, self._engine_url, self._name, self._folder, rows, self._progress
            )
        warm = self._evaluate(AFTER_SFT, warm_policy.sampler)
        size = f"{recipe.rl_steps} steps of {recipe.groups} tasks × {recipe.group_size} rollouts"
        with self._stage(f"GRPO: api, trainer and environment, {size}", "GRPO"):
            learned, curve = self._reinforce(warm_policy.weights)
        policies = ((BASE, base), (AFTER_SFT, warm), (AFTER_GRPO, self._evaluate(AFTER_GRPO, learned)))
        return QuickstartOutcome(
            run_name=self._name,
            device=self._device,
            generated=data.trajectories,
            right=data.right,
            policies=policies,
            losses=warm_policy.losses,
            curve=curve,
            stages=tuple(self._stages),
            weights=learned,
            folder=self._folder,
        )

    def _fitting_recipe(self) -> QuickstartRecipe:
        """The recipe for this machine, printed with the time it takes. On a GPU it is always the same."""
        if self._device != "cpu":
            return self._recipes[0]
        pace_s = pace.measure_pace(self._engine_url)
        recipe = pace.fit(self._recipes, pace_s)
        self._progress(pace.announce(self._recipes, recipe, pace_s))
        return recipe

    @contextmanager
    def _stage(self, heading: str, name: str) -> Iterator[None]:
        self._progress(f"{len(self._stages) + 1}. {heading}")
        began_s, before = time.monotonic(), self._tokens()
        try:
            yield
        except HermesError:
            self._processes.check()  # a failed process is the better explanation
            raise
        spent = self._tokens().since(before)
        self._stages.append(Stage(name, time.monotonic() - began_s, spent))

    def _tokens(self) -> EngineTokens:
        return engine_tokens(self._engine_url) if self._engine_url else EngineTokens()

    def _start_engine(self) -> None:
        port = ports.choose(ports.ENGINE_PORT)
        url = f"http://127.0.0.1:{port}"
        self._processes.start(
            "engine",
            (
                *("engine", "serve", "--model", MODEL, "--device", self._device),
                *("--replicas", str(self._engine_replicas)),
                *("--port", str(port), "--state-dir", str(self._folder / "engine")),
            ),
        )
        tokenizer()  # loaded for the evaluations while the engine uses only one core
        self._processes.wait_until_ready("engine", lambda: fetch_json(f"{url}/health") is not None)
        self._engine_url = url

    def _evaluate(self, policy: str, weights: str) -> PolicyEvaluation:
        with self._stage(f"{policy}: held-out tasks, no examples", f"evaluate {policy}"):
            measured = evaluate(self._recipe, self._engine_url, weights, self._progress)
            self._progress(
                f"   {policy}: greedy {measured.greedy.mean:.1%}, sampled at temperature 1 "
                f"{measured.sampled.mean:.1%}"
            )
        return measured

    def _reinforce(self, weights: str) -> tuple[str, tuple[Point, ...]]:
        recipe, folder = self._recipe, self._folder / "grpo"
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
        recipe = self._recipe
        return (
            *("train", "grpo", "--base-model", MODEL, "--service", self._engine_url, "--start", weights),
            *("--name", f"{self._name}-grpo", "--run-dir", str(folder), "--rank", str(recipe.rank)),
            *("--learning-rate", str(recipe.rl_rate), "--schedule", "linear"),
            *("--num-steps", str(recipe.rl_steps)),
            *("--batch-size", str(recipe.batch_size), "--api-url", api),
            *("--lease", str(recipe.lease_s), "--env-patience", str(_ENV_PATIENCE_S), "--json"),
        )

    def _environment(self, api: str, number: int) -> tuple[str, ...]:
        recipe = self._recipe
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
            "openai.base_url": f"{self._engine_url}/v1",
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
