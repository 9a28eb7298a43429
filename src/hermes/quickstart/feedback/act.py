"""`hermes quickstart feedback`: answers, ratings, DPO, and with --full a reward model and RLHF.

It ends with a table and one picture of the answers before and after.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from hermes.core import JSONObject
from hermes.core.durations import duration
from hermes.disk.files import atomic_write
from hermes.quickstart import chart
from hermes.quickstart.act import Act, ActOptions, command_list, open_act, text_table
from hermes.quickstart.feedback import rule
from hermes.quickstart.feedback.answers import PolicyAnswers
from hermes.quickstart.feedback.recipe import FeedbackRecipe
from hermes.quickstart.feedback.stages import FeedbackStages
from hermes.training.session import ProgressCallback

BASE, AFTER_DPO, AFTER_RLHF = "base", "after DPO", "after RLHF"
PICTURE = "before-after.svg"


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
    reward_model: JSONObject | None
    """The report on held-out pairs; None: there is no reward model."""
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
    policies, samplers = [(BASE, base), (AFTER_DPO, dpo)], {AFTER_DPO: preferred["sampler"]}
    report: JSONObject | None = None
    curve: list[JSONObject] = []
    if recipe.rlhf:
        with act.stage(f"reward model, {recipe.reward_steps} steps of {recipe.batch} pairs", "reward model"):
            model = stages.reward(files)
            report = model["held_out"]
            progress(f"   right on {report['accuracy']:.0%} of {report['pairs']} held-out pairs")
        size = f"{recipe.rl_steps} steps of {recipe.rl_batch} answers"
        with act.stage(f"RLHF: from DPO's policy on, rewarded by the reward model, {size}", "RLHF"):
            trained, curve = stages.rlhf(files, model["run_dir"], kl=recipe.kl, start=preferred["weights"])
            policies.append((AFTER_RLHF, shown(AFTER_RLHF, stages.evaluate(trained["sampler"]))))
            samplers[AFTER_RLHF] = trained["sampler"]
    return FeedbackOutcome(
        act.name,
        act.device,
        tuple(policies),
        samplers,
        files.answers,
        files.stars,
        report,
        tuple(curve),
        sum(stage.seconds for stage in act.stages),
        act.folder,
    )


def picture(outcome: FeedbackOutcome) -> str:
    """What the rule likes, as shares of the held-out answers of the first policy and of the last."""
    parts = (("figure_first", "figure first"), ("short", "at most 10 words"), ("polite", "polite"))
    base, last = outcome.policies[0][1], outcome.policies[-1][1]
    before, after = base.summary(base), last.summary(base)
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
    return chart.bars(rows, (outcome.policies[0][0], outcome.policies[-1][0]))


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
    examples = "\n".join(f"  {name:12} {answers.texts[0].strip()!r}" for name, answers in outcome.policies)
    return (
        f"{text_table(rows)}\n{_rlhf_lines(outcome)}\n{examples}\n\n"
        f"{duration(outcome.seconds)} on {outcome.device}; everything is in {outcome.folder}\n"
        f"picture {outcome.folder / PICTURE}\n\nNext:\n{next_commands(outcome)}"
    )


def _rlhf_lines(outcome: FeedbackOutcome) -> str:
    report = outcome.reward_model
    if report is None:
        return ""
    accuracy = f"right on {report['accuracy']:.0%} of {report['pairs']} held-out pairs"
    calibration = f"calibration error {report['ece']:.3f}"
    return f"\nreward model: {accuracy}, {calibration}\n{_rlhf_line(outcome.curve)}\n"


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
    (name, model), engine = list(outcome.samplers.items())[-1], "http://127.0.0.1:8001/v1"
    question = f'-q "How many legs do 3 cats have together?" -s "{rule.SYSTEM_PROMPT}" --toolsets none'
    commands = (
        (f"hermes trajectories list --run {outcome.run_name}-answers", "what was rated"),
        (f"hermes engine serve --state-dir {outcome.folder / 'engine'}", "serves what was learned; then:"),
        (f"hermes {question} --base-url {engine} --model {model}", f"asks the policy {name}"),
        ("hermes rate queue", "rate your own conversations"),
        ("hermes improve", "and learn from them"),
    )
    return command_list(commands)
