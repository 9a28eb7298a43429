"""`hermes quickstart feedback`: answers, ratings, DPO.

It ends with a table and one picture of the answers before and after.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from hermes.core import JSONObject
from hermes.core.clock import duration
from hermes.disk.files import atomic_write
from hermes.quickstart import chart
from hermes.quickstart.act import Act, ActOptions, open_act, text_table
from hermes.quickstart.feedback import rule
from hermes.quickstart.feedback.answers import PolicyAnswers
from hermes.quickstart.feedback.recipe import FeedbackRecipe
from hermes.quickstart.feedback.stages import FeedbackStages
from hermes.training.session import ProgressCallback

BASE, AFTER_DPO = "base", "after DPO"
PICTURE = "before-after.svg"


@dataclass(frozen=True)
class FeedbackOutcome:
    run_name: str
    device: str
    base: PolicyAnswers
    trained: PolicyAnswers
    sampler: str
    """tinker:// path of the trained policy, to sample from."""
    answers: int
    """Answers that were rated."""
    stars: float
    """Their mean rating."""
    seconds: float
    folder: Path

    @property
    def policies(self) -> tuple[tuple[str, PolicyAnswers], ...]:
        return (BASE, self.base), (AFTER_DPO, self.trained)

    def to_json(self) -> JSONObject:
        return {
            "run_name": self.run_name,
            "device": self.device,
            "policies": {name: answers.summary(self.base) for name, answers in self.policies},
            "samplers": {AFTER_DPO: self.sampler},
            "answers": self.answers,
            "stars": self.stars,
            "seconds": self.seconds,
            "folder": str(self.folder),
        }


def run(options: ActOptions[FeedbackRecipe], progress: ProgressCallback) -> FeedbackOutcome:
    """Runs all stages. All processes are stopped at the end, whatever ends it."""
    with open_act("feedback", options, progress) as act:
        outcome = _run_stages(act)
    atomic_write(outcome.folder / "report.json", json.dumps(outcome.to_json(), indent=1) + "\n")
    atomic_write(outcome.folder / PICTURE, picture(outcome))
    return outcome


def _run_stages(act: Act[FeedbackRecipe]) -> FeedbackOutcome:
    act.start_engine()
    recipe, progress = act.recipe, act.progress
    stages = FeedbackStages(act.processes, act.engine_url, act.folder, act.name, recipe, progress)

    def shown(name: str, answers: PolicyAnswers) -> PolicyAnswers:
        progress(f"   {name}: {answers.stars:.1f} stars; for example: {answers.texts[0].strip()!r}")
        return answers

    with act.stage(f"the base model answers {recipe.held_out} held-out questions", "base"):
        base = shown(BASE, stages.evaluate())
    with act.stage(f"it answers {recipe.questions} other questions, and a rule rates the answers", "answers"):
        progress(f"   {rule.DESCRIPTION}")
        files = stages.collect()
        progress(f"   {files.answers} answers, {files.stars:.1f} stars on average")
    with act.stage(f"DPO, {recipe.dpo_steps} steps of {recipe.batch} pairs", "DPO"):
        preferred = stages.dpo(files)
        dpo = shown(AFTER_DPO, stages.evaluate(preferred["sampler"]))
    return FeedbackOutcome(
        *(act.name, act.device, base, dpo, preferred["sampler"], files.answers, files.stars),
        *(sum(stage.seconds for stage in act.stages), act.folder),
    )


def picture(outcome: FeedbackOutcome) -> str:
    """The properties that the rule likes, as shares of the held-out answers before and after."""
    parts = (("figure_first", "figure first"), ("short", "at most 10 words"), ("polite", "polite"))
    before, after = outcome.base.summary(outcome.base), outcome.trained.summary(outcome.base)
    rows = [
        (
            "stars, of 5",
            before["stars"] / 5,
            after["stars"] / 5,
            f"{before['stars']:.1f}",
            f"{after['stars']:.1f}",
        )
    ]
    rows += [
        (label, before[part], after[part], f"{before[part]:.0%}", f"{after[part]:.0%}")
        for part, label in parts
    ]
    return chart.bars(rows, (BASE, AFTER_DPO))


def text(outcome: FeedbackOutcome) -> str:
    """The table for the terminal, and what to try next."""
    base = outcome.base
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
    examples = "\n".join(f"  {name:12} {answers.texts[0].strip()!r}" for name, answers in outcome.policies)
    return (
        f"{text_table(rows)}\n\n{examples}\n\n"
        f"{duration(outcome.seconds)} on {outcome.device}; everything is in {outcome.folder}\n"
        f"picture {outcome.folder / PICTURE}\n\nNext:\n{next_commands(outcome)}"
    )


def next_commands(outcome: FeedbackOutcome) -> str:
    """Commands that work unchanged after this act."""
    engine = "http://127.0.0.1:8001/v1"
    question = f'-q "How many legs do 3 cats have together?" -s "{rule.SYSTEM_PROMPT}" --toolsets none'
    commands = (
        (f"hermes trajectories list --run {outcome.run_name}-answers", "what was rated"),
        (f"hermes engine serve --state-dir {outcome.folder / 'engine'}", "serves what was learned; then:"),
        (f"hermes {question} --base-url {engine} --model {outcome.sampler}", "asks the policy"),
        ("hermes rate queue", "rate your own conversations"),
        ("hermes improve", "and learn from them"),
    )
    return "\n".join(f"  {command}    # {purpose}" for command, purpose in commands)
