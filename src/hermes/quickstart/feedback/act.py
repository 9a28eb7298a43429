"""`hermes quickstart feedback`: answers, ratings, DPO, reward model, RLHF; a table before and after."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from hermes.core import JSONObject
from hermes.core.durations import duration
from hermes.disk.files import atomic_write, ensure_dir
from hermes.errors import HermesError
from hermes.quickstart.feedback import pace, rule
from hermes.quickstart.feedback.answers import PolicyAnswers
from hermes.quickstart.feedback.recipe import FeedbackRecipe
from hermes.quickstart.feedback.stages import FeedbackStages
from hermes.quickstart.pace import measure_pace
from hermes.quickstart.recipe import MODEL
from hermes.rl.process import fetch_json
from hermes.rl.supervise import ports
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


@dataclass(frozen=True, slots=True)
class FeedbackOptions:
    recipes: tuple[FeedbackRecipe, ...]
    """Largest first; on a CPU the machine's pace decides which one is used."""
    device: str
    """cpu or cuda."""
    output: Path
    """The folder in which the folder of this act is created."""
    engine_replicas: int = 1
    """Worker processes of the engine."""


@dataclass(frozen=True)
class FeedbackOutcome:
    run_name: str
    device: str
    policies: tuple[tuple[str, PolicyAnswers], ...]
    """Base first."""
    samplers: dict[str, str]
    """tinker:// path of each trained policy, to sample from."""
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
            "samplers": self.samplers,
            "answers": self.answers,
            "stars": self.stars,
            "reward_model": self.reward_model,
            "curve": list(self.curve),
            "seconds": self.seconds,
            "folder": str(self.folder),
        }


def run(options: FeedbackOptions, progress: ProgressCallback) -> FeedbackOutcome:
    """Runs all stages. All processes are stopped at the end, whatever ends it."""
    name = f"feedback-{datetime.now():%Y%m%d-%H%M%S}"
    folder = ensure_dir(options.output.absolute() / name)
    progress(f"everything is written to {folder}")
    with sigterm_as_interrupt(), ProcessGroup(folder / "logs", folder, _LOCAL) as processes:
        outcome = _FeedbackAct(options, name, folder, processes, progress).run()
    atomic_write(folder / "report.json", json.dumps(outcome.to_json(), indent=1) + "\n")
    return outcome


class _FeedbackAct:
    def __init__(
        self,
        options: FeedbackOptions,
        name: str,
        folder: Path,
        processes: ProcessGroup,
        progress: ProgressCallback,
    ) -> None:
        self._recipes, self._device = options.recipes, options.device
        self._engine_replicas = options.engine_replicas
        self._name, self._folder, self._processes, self._progress = name, folder, processes, progress
        self._began_s = time.monotonic()
        self._number = 0

    def run(self) -> FeedbackOutcome:
        with self._stage(f"the engine loads {MODEL} on {self._device}"):
            url = self._start_engine()
            recipe = self._fitting_recipe(url)
        stages = FeedbackStages(self._processes, url, self._folder, self._name, recipe, self._progress)
        with self._stage(f"the base model answers {recipe.held_out} held-out questions"):
            base = self._shown(BASE, stages.evaluate())
        with self._stage(f"it answers {recipe.questions} other questions, and a rule rates the answers"):
            self._progress(f"   {rule.DESCRIPTION}")
            files = stages.collect()
            self._progress(f"   {files.answers} answers, {files.stars:.1f} stars on average")
        with self._stage(f"DPO, {recipe.dpo_steps} steps of {recipe.batch} pairs"):
            preferred = stages.dpo(files)
            dpo = self._shown(AFTER_DPO, stages.evaluate(preferred["sampler"]))
        with self._stage(f"reward model, {recipe.reward_steps} steps of {recipe.batch} pairs"):
            model = stages.reward(files)
            report = model["held_out"]
            self._progress(f"   right on {report['accuracy']:.0%} of {report['pairs']} held-out pairs")
        size = f"{recipe.rl_steps} steps of {recipe.rl_batch} answers"
        with self._stage(f"RLHF: from DPO's policy on, rewarded by the reward model, {size}"):
            trained, curve = stages.rlhf(files, model["run_dir"], kl=recipe.kl, start=preferred["weights"])
            rlhf = self._shown(AFTER_RLHF, stages.evaluate(trained["sampler"]))
        return FeedbackOutcome(
            self._name,
            self._device,
            ((BASE, base), (AFTER_DPO, dpo), (AFTER_RLHF, rlhf)),
            {AFTER_DPO: preferred["sampler"], AFTER_RLHF: trained["sampler"]},
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
        try:
            yield
        except HermesError:
            self._processes.check()  # a failed process is the better explanation
            raise
        self._progress(f"   {duration(time.monotonic() - began_s)}")

    def _fitting_recipe(self, engine_url: str) -> FeedbackRecipe:
        """The recipe for this machine, printed with the time it takes. On a GPU it is always the same."""
        if self._device != "cpu":
            return self._recipes[0]
        pace_s = measure_pace(engine_url)
        recipe = pace.fit(self._recipes, pace_s)
        self._progress(pace.announce(self._recipes, recipe, pace_s))
        return recipe

    def _shown(self, name: str, answers: PolicyAnswers) -> PolicyAnswers:
        self._progress(f"   {name}: {answers.stars:.1f} stars; for example: {answers.texts[0].strip()!r}")
        return answers

    def _start_engine(self) -> str:
        port = ports.choose(ports.ENGINE_PORT)
        url = f"http://127.0.0.1:{port}"
        arguments = ("engine", "serve", "--model", MODEL, "--device", self._device, "--port", str(port))
        replicas = ("--replicas", str(self._engine_replicas))
        self._processes.serve(
            "engine",
            (*arguments, *replicas, "--state-dir", str(self._folder / "engine")),
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
    return (
        f"{table}\n\n"
        f"reward model: right on {report['accuracy']:.0%} of {report['pairs']} held-out pairs, "
        f"calibration error {report['ece']:.3f}\n{_rlhf_line(outcome.curve)}\n\n{examples}\n\n"
        f"{duration(outcome.seconds)} on {outcome.device}; everything is in {outcome.folder}\n\n"
        f"Next:\n{next_commands(outcome)}"
    )


def _rlhf_line(curve: Sequence[JSONObject]) -> str:
    """Proxy, true reward and KL side by side."""
    first, last = curve[0], curve[-1]
    figures = (
        f"{label} {first[name]:.2f} → {last[name]:.2f}"
        for name, label in (("proxy", "the reward model's score"), ("true", "the rule's"), ("kl", "KL"))
        if name in first and name in last
    )
    return f"RLHF, first to last step: {', '.join(figures)}"


def next_commands(outcome: FeedbackOutcome) -> str:
    """Commands that work unchanged after this act."""
    model, engine = outcome.samplers[AFTER_RLHF], "http://127.0.0.1:8001/v1"
    question = f'-q "How many legs do 3 cats have together?" -s "{rule.SYSTEM_PROMPT}" --toolsets none'
    commands = (
        (f"hermes trajectories list --run {outcome.run_name}-answers", "what was rated"),
        (f"hermes engine serve --state-dir {outcome.folder / 'engine'}", "serves what was learned; then:"),
        (f"hermes {question} --base-url {engine} --model {model}", f"asks the policy {AFTER_RLHF}"),
        ("hermes rate queue", "rate your own conversations"),
        ("hermes improve", "and learn from them"),
    )
    return "\n".join(f"  {command}    # {purpose}" for command, purpose in commands)
