"""Learning from ratings with the bundled model, for several seeds: raw metrics as JSON.

    python bench/feedback.py --seeds 0,1,2 --minutes 20 --output feedback.json [--device cuda] [--size gpu]
    python bench/feedback.py --seeds 0 --policies-only --variant dpo_rate=1e-4 --variant kto_beta=0.3

Each seed: the calculator's warm start, answers to questions rated by a rule, DPO, KTO, reward models with 0,
10 and 30 % of the labels flipped, RLHF with and without a KL penalty. Policies are compared on held-out
questions by the rule, and on the calculator's held-out tasks. The file is rewritten after every stage, and no
stage starts once the time is spent, so that what was measured is never lost. Each --variant trains DPO
and KTO once more, on the same answers with other fields of the recipe, as variant-1, variant-2 and so on.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import feedback_stages
from feedback_stages import BenchStages

from hermes.disk.files import atomic_write, ensure_dir
from hermes.quickstart import recipe as calculator
from hermes.quickstart.evaluate import evaluate
from hermes.quickstart.feedback.stages import StartPolicy
from hermes.quickstart.generate import export_right, generate, warm_start
from hermes.rl.supervise import ports
from hermes.rl.supervise.process_group import ProcessGroup
from hermes.serving.fetch import fetch_json
from hermes.training.monitor.overoptimisation import OveroptimisationGuard

NOISE = (0.0, 0.1, 0.3)
SIZES = {
    "gpu": (calculator.CUDA, feedback_stages.CUDA),
    "cpu": (calculator.CPU, feedback_stages.CPU),
    "test": (calculator.FAST, feedback_stages.FAST),
}


class Record:
    """The measurements so far, on disk after each one."""

    def __init__(self, path: Path, facts: dict[str, Any], seconds: float) -> None:
        self.path, self.data = path, {**facts, "seeds": {}}
        self._began_s, self._seconds = time.monotonic(), seconds

    def spent_s(self) -> float:
        return time.monotonic() - self._began_s

    def stage(self, seed: int, name: str, work: Callable[[], Any]) -> Any:
        """The result of the work; None if the time is spent or it failed, which is recorded."""
        entry = self.data["seeds"].setdefault(str(seed), {})
        if self.spent_s() > self._seconds:
            entry.setdefault("left_out", []).append(name)
            self._write()
            return None
        began_s = time.monotonic()
        print(f"[{self.spent_s():6.0f} s] seed {seed}: {name}", flush=True)
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - a failed stage must not lose the measurements of the others
            print(f"    failed: {error}", flush=True)
            entry.setdefault("failed", {})[name] = str(error)
            self._write()
            return None
        entry.setdefault("seconds", {})[name] = round(time.monotonic() - began_s, 1)
        return result

    def keep(self, seed: int, name: str, value: Any) -> None:
        self.data["seeds"].setdefault(str(seed), {})[name] = value
        self._write()
        print(f"    {name}: {_short(value)}", flush=True)

    def _write(self) -> None:
        self.data["seconds"] = round(self.spent_s(), 1)
        atomic_write(self.path, json.dumps(self.data, indent=1) + "\n")


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 400 else f"{text[:400]}…"


class Seed:
    """All stages of one seed, with one engine."""

    def __init__(
        self, seed: int, processes: ProcessGroup, engine_url: str, folder: Path, sizes: Any, record: Record
    ) -> None:
        self.seed, self.processes, self.engine_url, self.folder = seed, processes, engine_url, folder
        self.calculator, self.recipe = sizes
        self.record = record
        self.base: Any = None
        self.models: dict[float, str] = {}
        self.with_warm_start = True
        self.with_rewards = True
        self.with_policies = True
        self.variants: dict[str, Any] = {}
        # Answers are found in the store by the name of their run: that of an earlier benchmark is another.
        self.stamp = f"{time.time():.0f}"

    def run(self) -> None:
        start = (self.with_warm_start and self._try("warm start", self._warm_start)) or StartPolicy()
        stages = BenchStages(
            self.processes,
            self.engine_url,
            self.folder,
            f"feedback-{self.stamp}-{self.seed}",
            self.recipe,
            lambda line: None,
            start,
            self.seed,
        )
        self.base = self._try("base", stages.evaluate)
        if self.base is None:
            return
        self._keep("base", self.base.summary(self.base))
        if self.with_policies:
            self._calculate("base", start.sampler)
        files = self._try("ratings", stages.collect)
        if files is None:
            return
        self._keep(
            "ratings",
            {
                "answers": files.answers,
                "stars": files.stars,
                "pairs": _lines(files.pairs),
                "held_out_pairs": _lines(files.held_out_pairs),
            },
        )
        for name, work in (("dpo", stages.dpo), ("kto", stages.kto)) if self.with_policies else ():
            self._policy(stages, name, self._try(name, lambda work=work: work(files)))
        for label, recipe in self.variants.items():
            self._variant(label, recipe, start, files)
        models = {}
        for noise in NOISE if self.with_rewards else ():
            trained = self._try(f"reward, noise {noise:g}", lambda noise=noise: stages.reward(files, noise))
            if trained is not None:
                models[noise] = trained["run_dir"]
                self._keep(f"reward_noise_{noise:g}", trained["held_out"])
        self.stages, self.files, self.models = stages, files, models

    def _variant(self, label: str, recipe: Any, start: StartPolicy, files: Any) -> None:
        """DPO and KTO with another recipe, on the answers that are rated already."""
        name, folder = f"feedback-{self.stamp}-{self.seed}-{label}", self.folder / label
        stages = BenchStages(
            self.processes, self.engine_url, folder, name, recipe, lambda line: None, start, self.seed
        )
        for kind, work in (("dpo", stages.dpo), ("kto", stages.kto)):
            trained = self._try(f"{kind}, {label}", lambda work=work: work(files))
            self._policy(stages, f"{kind}_{label}", trained)

    def reinforce(self, noise: float) -> None:
        """RLHF against the reward model of that label noise, with a KL penalty and without."""
        if noise not in self.models:
            return
        for name, kl in (("rlhf", self.recipe.kl), ("rlhf_without_kl", 0.0)):
            outcome = self._try(
                name,
                lambda name=name, kl=kl: self.stages.rlhf(
                    self.files, self.models[noise], kl=kl, guarded=False, label=name
                ),
            )
            if outcome is not None:
                self._keep(f"{name}_curve", outcome[1])
                self._keep(f"{name}_guard", would_stop_at(outcome[1]))
                self._policy(self.stages, name, outcome[0])

    def _policy(self, stages: BenchStages, name: str, trained: Any) -> None:
        if trained is None:
            return
        answers = self._try(f"{name}: evaluate", lambda: stages.evaluate(trained["sampler"]))
        if answers is not None:
            self._keep(
                name, {**answers.summary(self.base), "reason": trained["reason"], "step": trained["step"]}
            )
        if self.with_policies:
            self._calculate(name, trained["sampler"])

    def _calculate(self, name: str, sampler: str) -> None:
        measured = self._try(
            f"{name}: calculator",
            lambda: evaluate(self.calculator, self.engine_url, sampler),
        )
        if measured is not None:
            self._keep(f"{name}_calculator", asdict(measured))

    def _warm_start(self) -> StartPolicy:
        folder, name = ensure_dir(self.folder / "warm"), f"feedback-{self.stamp}-{self.seed}-warm"
        data = generate(self.calculator, self.engine_url, folder, name, lambda line: None)
        rows = export_right(self.processes, folder, data)
        policy = warm_start(
            self.processes, self.calculator, self.engine_url, name, folder, rows, lambda line: None
        )
        return StartPolicy(policy.sampler, policy.weights, rows)

    def _try(self, name: str, work: Callable[[], Any]) -> Any:
        return self.record.stage(self.seed, name, work)

    def _keep(self, name: str, value: Any) -> None:
        self.record.keep(self.seed, name, value)


def would_stop_at(curve: list[dict[str, float]]) -> dict[str, Any] | None:
    """The step at which the guard against over-optimisation would have ended the run, and why."""
    guard = OveroptimisationGuard()
    for point in curve:
        names = {"reward/mean": "proxy", "reward/true": "true", "eval/preference": "preference"}
        reason = guard.judge({name: point[label] for name, label in names.items() if label in point})
        if reason:
            return {"step": point["step"], "reason": reason}
    return None


def _fields(entries: list[str]) -> dict[str, Any]:
    """FIELD=VALUE …, with values in JSON."""
    return {name: json.loads(value) for name, _, value in (entry.partition("=") for entry in entries)}


def _lines(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


@contextmanager
def engine(folder: Path, device: str, kv_gib: float | None) -> Any:
    local = {
        "TINKER_API_KEY": "tml-local",
        "HERMES_ENGINE_TOKEN": "",
        "HERMES_API_TOKEN": "",
        "WANDB_API_KEY": "",
    }
    os.environ.update(local)
    with ProcessGroup(folder / "logs", folder, local) as processes:
        port = ports.choose(ports.ENGINE_PORT)
        url = f"http://127.0.0.1:{port}"
        serve = ("engine", "serve", "--model", calculator.MODEL, "--device", device, "--port", str(port))
        serve = (*serve, *(("--kv-gib", str(kv_gib)) if kv_gib else ()))
        processes.serve(
            "engine",
            (*serve, "--state-dir", str(folder / "engine")),
            lambda: fetch_json(f"{url}/health") is not None,
        )
        yield processes, url


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--output", type=Path, default=Path("feedback.json"))
    parser.add_argument("--folder", type=Path, default=Path("data/feedback"))
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--kv-gib", type=float, default=None, help="of the engine, where several share a GPU")
    parser.add_argument("--size", default=None, choices=sorted(SIZES))
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="of BenchRecipe")
    parser.add_argument(
        "--variant", action="append", default=[], metavar="FIELD=VALUE,…", help="DPO and KTO once more"
    )
    parser.add_argument("--policies-only", action="store_true", help="no reward models and no RLHF")
    parser.add_argument(
        "--rewards-only", action="store_true", help="no DPO, no KTO and no calculator: reward models and RLHF"
    )
    parser.add_argument("--no-warm-start", action="store_true", help="start from the base model itself")
    parser.add_argument("--rlhf-noise", type=float, default=0.1, choices=NOISE, help="of RLHF's reward model")
    given = parser.parse_args()
    from hermes.quickstart.act import choose_device

    device = choose_device(given.device)
    size = given.size or ("gpu" if device == "cuda" else "cpu")
    calculator_recipe, recipe = SIZES[size]
    recipe = replace(recipe, **_fields(given.set))
    variants = {
        f"variant-{number}": replace(recipe, **_fields(text.split(",")))
        for number, text in enumerate(given.variant, 1)
    }
    folder = ensure_dir(given.folder.absolute())
    facts = {
        "device": device,
        "size": size,
        "recipe": asdict(recipe),
        "variants": {f"variant-{number}": text for number, text in enumerate(given.variant, 1)},
        "calculator": asdict(calculator_recipe),
    }
    record = Record(given.output.absolute(), facts, given.minutes * 60)
    with engine(folder, device, given.kv_gib) as (processes, url):
        runs = [
            Seed(seed, processes, url, folder / str(seed), (calculator_recipe, recipe), record)
            for seed in map(int, given.seeds.split(","))
        ]
        for run in runs:
            run.with_warm_start = not given.no_warm_start
            run.with_rewards, run.variants = not given.policies_only, variants
            run.with_policies = not given.rewards_only
            run.run()
        for run in runs:  # the longest stage, after every seed has its other measurements
            run.reinforce(given.rlhf_noise)
    print(f"raw metrics in {record.path}")


if __name__ == "__main__":
    main()
