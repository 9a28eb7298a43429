"""`hermes quickstart feedback`: answers, ratings, DPO, reward model, RLHF; a table before and after."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from hermes.core import JSONObject
from hermes.core.durations import duration
from hermes.disk.files import atomic_write, ensure_dir
from hermes.quickstart.feedback.answers import PolicyAnswers
from hermes.quickstart.feedback.recipe import FeedbackRecipe
from hermes.quickstart.feedback.stages import FeedbackStages
from hermes.quickstart.recipe import MODEL
from hermes.rl.supervise import ports
from hermes.rl.supervise.process import fetch_json
from hermes.rl.supervise.process_group import ProcessGroup, sigterm_as_interrupt
from hermes.training.session import ProgressCallback

BASE, AFTER_DPO, AFTER_RLHF = "base", "after DPO", "after RLHF"
_LOCAL = {
    "TINKER_API_KEY": "tml-local",
    "HERMES_ENGINE_TOKEN": "",
    "HERMES_API_TOKEN": "",
    "WANDB_API_KEY": "",
}
"""No account of the user is used: everything stays on this machine."""


@dataclass(frozen=True)
class FeedbackOutcome:
    run_name: str
    device: str
    policies: tuple[tuple[str, PolicyAnswers], ...]
    """Base first."""
    answers: int
    """Answers that were rated."""
    stars: float
    """Their mean rating."""
    reward_model: JSONObject
    """The report on held-out pairs."""
    curve: tuple[JSONObject, ...]
    """Proxy, KL and true reward of RLHF, step by step."""
    seconds: float
    folder: Path

    def to_json(self) -> JSONObject:
        base = self.policies[0][1]
        return {
            "run_name": self.run_name,
            "device": self.device,
            "policies": {name: answers.summary(base) for name, answers in self.policies},
            "answers": self.answers,
            "stars": self.stars,
            "reward_model": self.reward_model,
            "curve": list(self.curve),
            "seconds": self.seconds,
            "folder": str(self.folder),
        }


def run(recipe: FeedbackRecipe, device: str, output: Path, progress: ProgressCallback) -> FeedbackOutcome:
    """Runs all stages. All processes are stopped at the end, whatever ends it."""
    name = f"feedback-{datetime.now():%Y%m%d-%H%M%S}"
    folder = ensure_dir(output.absolute() / name)
    with sigterm_as_interrupt(), ProcessGroup(folder / "logs", folder, _LOCAL) as processes:
        outcome = _FeedbackAct(recipe, device, name, folder, processes, progress).run()
    atomic_write(folder / "report.json", json.dumps(outcome.to_json(), indent=1) + "\n")
    return outcome


class _FeedbackAct:
    def __init__(
        self,
        recipe: FeedbackRecipe,
        device: str,
        name: str,
        folder: Path,
        processes: ProcessGroup,
        progress: ProgressCallback,
    ) -> None:
        self._recipe, self._device, self._name, self._folder = recipe, device, name, folder
        self._processes, self._progress = processes, progress
        self._began_s = time.monotonic()
        self._number = 0

    def run(self) -> FeedbackOutcome:
        with self._stage(f"the engine loads {MODEL} on {self._device}"):
            url = self._start_engine()
        recipe = self._recipe
        stages = FeedbackStages(self._processes, url, self._folder, self._name, recipe, self._progress)
        with self._stage(f"base: {recipe.held_out} held-out questions"):
            base = self._shown(BASE, stages.evaluate())
        with self._stage(f"answers to {recipe.questions} other questions, rated from 1 to 5 by a rule"):
            files = stages.collect()
            self._progress(f"   {files.answers} answers, {files.stars:.1f} stars on average")
        with self._stage(f"DPO, {recipe.dpo_steps} steps of {recipe.batch} pairs"):
            dpo = self._shown(AFTER_DPO, stages.evaluate(stages.dpo(files)["sampler"]))
        with self._stage(f"reward model, {recipe.reward_steps} steps"):
            model = stages.reward(files)
            report = model["held_out"]
            self._progress(f"   right on {report['accuracy']:.0%} of {report['pairs']} held-out pairs")
        size = f"{recipe.rl_steps} steps of {recipe.rl_batch} answers"
        with self._stage(f"RLHF from the base model against the reward model, {size}"):
            trained, curve = stages.rlhf(files, model["run_dir"], kl=recipe.kl)
            rlhf = self._shown(AFTER_RLHF, stages.evaluate(trained["sampler"]))
        return FeedbackOutcome(
            self._name,
            self._device,
            ((BASE, base), (AFTER_DPO, dpo), (AFTER_RLHF, rlhf)),
            files.answers,
            files.stars,
            report,
            tuple(curve),
            time.monotonic() - self._began_s,
            self._folder,
        )

    @contextmanager
    def _stage(self, heading: str) -> Iterator[None]:
        self._number += 1
        self._progress(f"{self._number}. {heading}")
        began_s = time.monotonic()
        yield
        self._progress(f"   {duration(time.monotonic() - began_s)}")

    def _shown(self, name: str, answers: PolicyAnswers) -> PolicyAnswers:
        self._progress(f"   {name}: {answers.stars:.1f} stars; for example: {answers.texts[0].strip()!r}")
        return answers

    def _start_engine(self) -> str:
        port = ports.choose(ports.ENGINE_PORT)
        url = f"http://127.0.0.1:{port}"
        arguments = ("engine", "serve", "--model", MODEL, "--device", self._device, "--port", str(port))
        self._processes.serve(
            "engine",
            (*arguments, "--state-dir", str(self._folder / "engine")),
            lambda: fetch_json(f"{url}/health") is not None,
        )
        return url


def text(outcome: FeedbackOutcome) -> str:
    """The table for the terminal, and what to try next."""
    base = outcome.policies[0][1]
    rows: list[tuple[str, ...]] = [
        ("held-out questions", "stars", "figure first", "short", "polite", "wins against base", "")
    ]
    for name, answers in outcome.policies:
        summary = answers.summary(base)
        wins = asdict(answers.wins_against(base))
        shares = (f"{summary[part]:.0%}" for part in ("figure_first", "short", "polite"))
        compared = (
            ("", "")
            if name == BASE
            else (f"{wins['mean']:.0%}", f"({wins['low']:.0%} to {wins['high']:.0%})")
        )
        rows.append((name, f"{answers.stars:.2f}", *shares, *compared))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = "\n".join(
        "  ".join((row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:]))).rstrip() for row in rows
    )
    report = outcome.reward_model
    examples = "\n".join(f"  {name:12} {answers.texts[0].strip()!r}" for name, answers in outcome.policies)
    engine = f"hermes engine serve --state-dir {outcome.folder / 'engine'}"
    return (
        f"{table}\n\n"
        f"reward model: right on {report['accuracy']:.0%} of {report['pairs']} held-out pairs, "
        f"calibration error {report['ece']:.3f}\n\n{examples}\n\n"
        f"{duration(outcome.seconds)} on {outcome.device}; everything is in {outcome.folder}\n\n"
        f"Next:\n"
        f"  hermes trajectories list --run {outcome.run_name}-answers    # what was rated\n"
        f"  {engine}    # serves what was learned\n"
        f"  hermes rate queue    # rate your own conversations; then: hermes train dpo"
    )
