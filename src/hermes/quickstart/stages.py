"""The whole loop, stage by stage: engine, batch, compressor, export, trainer, environment, evaluation.

Everything trained and sampled goes through one engine process. The stages are ordinary Hermes commands where
there is one, each with its log in the output folder, so that every stage can be repeated by hand.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from hermes.core.files import ensure_dir
from hermes.errors import HermesError
from hermes.quickstart import pace, probes
from hermes.quickstart.evaluate import Measured, measure, tokenizer
from hermes.quickstart.generate import Generated, generate
from hermes.quickstart.outcome import EngineTokens, Point, QuickstartOutcome, Stage
from hermes.quickstart.processes import ProcessGroup, terminated_like_interrupted
from hermes.quickstart.progress import StageMeter, Tell
from hermes.quickstart.recipe import ENVIRONMENT, MODEL, QuickstartRecipe
from hermes.rl.run import read_metrics
from hermes.rl.supervise import ports
from hermes.rl.supervise.part import ask

BASE, AFTER_SFT, AFTER_GRPO = "base", "after SFT", "after GRPO"
_BUDGET_TOKENS = 512
"""What a generated trajectory may have before the compressor folds it."""
_STARVING_S = 5.0
"""A trainer that has polled in vain for this long, with every environment gone, will get no batch."""
_ENV_PATIENCE_S = 300.0
"""Longer than an environment takes to start on a slow machine."""
_LOCAL = {
    "TINKER_API_KEY": "tml-local",
    "HERMES_ENGINE_TOKEN": "",
    "HERMES_API_TOKEN": "",
    "WANDB_API_KEY": "",
}
"""Nothing of the person's accounts is used: all of it stays on this machine."""


@dataclass(frozen=True, slots=True)
class QuickstartOptions:
    recipes: tuple[QuickstartRecipe, ...]
    """Largest first; on a CPU the machine's pace decides which of them is done."""
    device: str
    """cpu or cuda."""
    output: Path
    """A folder of its own for this quickstart."""


def run(options: QuickstartOptions, tell: Tell) -> QuickstartOutcome:
    """From nothing to a trained policy. Whatever ends it, no process is left behind."""
    name = f"quickstart-{datetime.now():%Y%m%d-%H%M%S}"
    folder = ensure_dir(options.output.absolute() / name)
    with terminated_like_interrupted(), ProcessGroup(folder / "logs", folder, _LOCAL) as crew:
        return _QuickstartRun(options, name, folder, crew, tell).run()


class _QuickstartRun:
    def __init__(
        self, options: QuickstartOptions, name: str, folder: Path, crew: ProcessGroup, tell: Tell
    ) -> None:
        self._recipes, self._device = options.recipes, options.device
        self._recipe = options.recipes[0]
        self._name, self._folder, self._crew, self._tell = name, folder, crew, tell
        self._engine_url = ""
        self._stages: list[Stage] = []

    def run(self) -> QuickstartOutcome:
        with self._stage(f"the engine loads {MODEL} on {self._device}", "start"):
            self._start_engine()
            recipe = self._recipe = self._fitting_recipe()
        base = self._evaluate(BASE, MODEL)
        with self._stage(f"{recipe.tasks} tasks with examples in the prompt, as a batch", "generate"):
            made = generate(recipe, self._engine_url, self._folder, self._name, self._tell)
            self._tell(f"   {made.right} of {made.trajectories} right; all of them are stored")
        with self._stage("the right ones are compressed and exported, without the examples", "export"):
            rows = self._export(made)
        with self._stage(f"supervised warm start, {recipe.sft_steps} steps of {recipe.sft_batch}", "SFT"):
            weights, sampler, losses = self._warm_start(rows)
        warm = self._evaluate(AFTER_SFT, sampler)
        what = f"{recipe.rl_steps} steps of {recipe.groups} tasks × {recipe.group_size} rollouts"
        with self._stage(f"GRPO: api, trainer and environment, {what}", "GRPO"):
            learned, curve = self._reinforce(weights)
        policies = ((BASE, base), (AFTER_SFT, warm), (AFTER_GRPO, self._evaluate(AFTER_GRPO, learned)))
        return QuickstartOutcome(
            run_name=self._name,
            device=self._device,
            generated=made.trajectories,
            right=made.right,
            policies=policies,
            losses=losses,
            curve=curve,
            stages=tuple(self._stages),
            weights=learned,
            folder=self._folder,
        )

    def _fitting_recipe(self) -> QuickstartRecipe:
        """The recipe for this machine, announced with the time it takes. A GPU's is always the same."""
        if self._device != "cpu":
            return self._recipes[0]
        pace_s = pace.measure_pace(self._engine_url)
        recipe = pace.fit(self._recipes, pace_s)
        self._tell(pace.announce(self._recipes, recipe, pace_s))
        return recipe

    @contextmanager
    def _stage(self, heading: str, name: str) -> Iterator[None]:
        self._tell(f"{len(self._stages) + 1}. {heading}")
        began_s, before = time.monotonic(), self._tokens()
        try:
            yield
        except HermesError:
            self._crew.check()  # a dead process explains more than what it left undone
            raise
        spent = self._tokens().since(before)
        self._stages.append(Stage(name, time.monotonic() - began_s, spent))

    def _tokens(self) -> EngineTokens:
        return probes.tokens(self._engine_url) if self._engine_url else EngineTokens()

    def _start_engine(self) -> None:
        port = ports.choose(ports.ENGINE_PORT)
        url = f"http://127.0.0.1:{port}"
        self._crew.start(
            "engine",
            (
                *("engine", "serve", "--model", MODEL, "--device", self._device),
                *("--port", str(port), "--state-dir", str(self._folder / "engine")),
            ),
        )
        tokenizer()  # what the evaluations need of this process, while the engine has only one core busy
        self._crew.until_ready("engine", lambda: ask(f"{url}/health") is not None)
        self._engine_url = url

    def _evaluate(self, policy: str, weights: str) -> Measured:
        with self._stage(f"{policy}: held-out tasks, no examples", f"evaluate {policy}"):
            measured = measure(self._recipe, self._engine_url, weights, self._tell)
            self._tell(
                f"   {policy}: greedy {measured.greedy.mean:.1%}, sampled at temperature 1 "
                f"{measured.sampled.mean:.1%}"
            )
        return measured

    def _export(self, made: Generated) -> Path:
        right, rows = f"run={made.run_name} reward>=1", self._folder / "sft.jsonl"
        self._crew.run(
            "compress",
            (
                *("compress", "--input", right, "--output", str(self._folder / "compressed.jsonl")),
                *("--target-max-tokens", str(_BUDGET_TOKENS), "--json"),
            ),
        )
        told = self._crew.run(
            "export",
            (
                *("export", "--run", made.run_name, "--min-reward", "1", "--compressed"),
                *("--format", "sharegpt", "--output", str(rows), "--json"),
            ),
        )
        self._tell(f"   {told['rows']} rows in {rows}")
        return rows

    def _warm_start(self, rows: Path) -> tuple[str, str, tuple[float, ...]]:
        recipe, folder = self._recipe, self._folder / "sft"
        meter = StageMeter("step", recipe.sft_steps, self._tell)
        told = self._crew.run(
            "sft",
            (
                *("train", "sft", str(rows), "--base-model", MODEL, "--base-url", self._engine_url),
                *("--name", f"{self._name}-sft", "--run-dir", str(folder), "--rank", str(recipe.rank)),
                *("--learning-rate", str(recipe.sft_rate), "--batch-size", str(recipe.sft_batch)),
                *("--max-steps", str(recipe.sft_steps), "--epochs", str(recipe.sft_steps), "--json"),
            ),
            _following(folder, meter, "train/loss", "loss"),
        )
        losses = tuple(row["train/loss"] for row in read_metrics(folder / "metrics.jsonl"))
        return told["weights"], told["sampler"], losses

    def _reinforce(self, weights: str) -> tuple[str, tuple[Point, ...]]:
        recipe, folder = self._recipe, self._folder / "grpo"
        api = f"http://127.0.0.1:{self._start_api()}"
        # Both at once: importing keeps one core busy, and the environment waits for the trainer by itself.
        self._crew.start("trainer", self._trainer(weights, api, folder))
        envs = [f"env-{number}" for number in range(recipe.environments)]
        for number, name in enumerate(envs):
            self._crew.start(name, self._environment(api, number))
        self._crew.until_ready("trainer", _says(api, "started"))
        self._crew.until_ready(envs[0], _says(api, "envs"))
        meter = StageMeter("step", recipe.rl_steps, self._tell)
        show_steps = _following(folder, meter, "reward/mean", "reward")

        def meanwhile() -> None:
            show_steps()
            self._check_supply(api, envs)

        result = self._crew.finish("trainer", meanwhile)
        for name in (*envs, "api"):
            self._crew.stop(name)
        return result["sampler"], points(folder / "metrics.jsonl")

    def _check_supply(self, api: str, envs: list[str]) -> None:
        """ProcessFailedError if every environment has ended and the trainer waits for another batch."""
        if not all(self._crew.has_ended(name) for name in envs):
            return
        waiting_s = ((ask(f"{api}/status") or {}).get("trainer") or {}).get("waiting_s")
        if waiting_s is not None and waiting_s > _STARVING_S:
            raise self._crew.failure(envs[0], "ended before the training did, which waits for a batch")

    def _start_api(self) -> int:
        port = ports.choose(ports.API_PORT)
        self._crew.serve(
            "api",
            ("api", "--port", str(port), "--state-dir", str(self._folder / "api")),
            lambda: ask(f"http://127.0.0.1:{port}/status") is not None,
        )
        return port

    def _trainer(self, weights: str, api: str, folder: Path) -> tuple[str, ...]:
        recipe = self._recipe
        return (
            *("train", "grpo", "--base-model", MODEL, "--base-url", self._engine_url, "--start", weights),
            *("--name", f"{self._name}-grpo", "--run-dir", str(folder), "--rank", str(recipe.rank)),
            *("--learning-rate", str(recipe.rl_rate), "--schedule", "linear"),
            *("--num-steps", str(recipe.rl_steps)),
            *("--batch-size", str(recipe.batch_size), "--api-url", api),
            *("--lease", str(recipe.lease_s), "--env-patience", str(_ENV_PATIENCE_S), "--json"),
        )

    def _environment(self, api: str, number: int) -> tuple[str, ...]:
        recipe = self._recipe
        settings = {
            "env.seed": 1 + number,  # tasks that neither the warm start nor another environment has seen
            "env.two_step_share": recipe.two_step_share,
            "env.reward_mode": recipe.reward_mode,
            "env.max_token_length": recipe.max_tokens,
            "env.group_size": recipe.group_size,
            "env.max_num_workers": recipe.groups // recipe.environments,
            "env.tool_pool_size": recipe.at_once // recipe.environments,
            "env.max_batches_offpolicy": 1,
            "env.total_steps": recipe.rl_steps - 1,  # it ends when more batches are made: with the last
            "env.steps_per_eval": recipe.rl_steps + 1,
            "env.ensure_scores_are_not_same": False,  # the trainer leaves them out, and the curve shows them
            "env.rollout_server_url": api,
            "env.use_wandb": False,
            "env.stop_patience_s": 0,  # when the trainer is done nobody wants the groups in the making
            "openai.base_url": f"{self._engine_url}/v1",
            "openai.model_name": "policy",
            "openai.server_type": "sglang",
        }
        flags = (word for name, value in settings.items() for word in (f"--{name}", str(value)))
        return ("env", "serve", ENVIRONMENT, *flags)


def _says(api: str, name: str) -> Callable[[], bool]:
    """Whether the trajectory API's status has something there."""
    return lambda: bool((ask(f"{api}/status") or {}).get(name))


def points(metrics: Path) -> tuple[Point, ...]:
    """The reward curve, out of a trainer's metrics."""
    return tuple(
        Point(int(row["step"]), row["reward/mean"], row.get("health/group_signal", 0.0))
        for row in read_metrics(metrics)
        if "reward/mean" in row
    )


def _following(folder: Path, meter: StageMeter, name: str, shown: str) -> Callable[[], None]:
    """Tells of a trainer's steps as they appear in its metrics."""
    seen = 0

    def look() -> None:
        nonlocal seen
        rows = [row for row in read_metrics(folder / "metrics.jsonl") if name in row]
        for row in rows[seen:]:
            meter.add(note=f"{shown} {row[name]:.3f}")
        seen = len(rows)

    return look
