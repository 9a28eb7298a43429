"""From a signal to promoted texts: split, search, comparison on held-out tasks, decision, report.

The tasks are three sets that share no question: rollouts on the first are shown to the proposer, the second
chooses among candidates, and the third decides, by the sequential test and the error rate that improvements
of weights spend too. A candidate that is not shown to be better changes nothing.

An improvement that was killed goes on with the same command: what it paid for is in its ledger.
"""

from __future__ import annotations

import asyncio
import difflib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hermes.agent.build import general_prompt
from hermes.batch.start import NO_TOOLSETS
from hermes.config.load import Config
from hermes.core import JSONObject, canonical_json, content_hash, parse_object
from hermes.core.clock import now_ms
from hermes.core.names import unused_name
from hermes.core.stats import interval
from hermes.core.texts import EXAMPLES, FILE, SKILL, SYSTEM_PROMPT, TOOL, Texts, hashes
from hermes.data.export.split import Side, group_tasks, side_of
from hermes.disk.files import atomic_write, ensure_dir
from hermes.errors import UsageError
from hermes.policies.improve import Improvement, check_decidable, run_stem
from hermes.policies.report import TEXT_METHOD, Block, decision_line, markdown
from hermes.policies.sequential import (
    SequentialDecision,
    SequentialTest,
    fewest_wins,
    spent_error_rate,
)
from hermes.policies.text.ledger import Ledger, Spending
from hermes.policies.text.proposals import Guard, Proposer
from hermes.policies.text.search import Evaluator, SearchResult, search
from hermes.policies.text.signal import TextSignal, TextTask
from hermes.skills import list_skills
from hermes.tools.registry import get
from hermes.training.policy_registry import PolicyRecord, PolicyRegistry, new_policy_id

_CHOOSING = 32
"""Most tasks that choose among the candidates."""
_FIRST = 8
"""Rollouts after which it is said that all have the same score."""
_CONDITIONS = "text.json"

Progress = Callable[[str], None]


@dataclass(frozen=True)
class TaskSplit:
    """Three sets without a question in common."""

    train: tuple[TextTask, ...]
    chosen_by: tuple[TextTask, ...]
    held_out: tuple[TextTask, ...]

    def __str__(self) -> str:
        counts = (len(self.train), len(self.chosen_by), len(self.held_out))
        return "{} tasks to learn from, {} that choose, {} held out for the decision".format(*counts)


def split_tasks(tasks: Sequence[TextTask], eval_share: float) -> TaskSplit:
    """Equal and nearly equal prompts are on one side; a task's side does not depend on the other tasks."""
    groups = group_tasks((task.key, task.prompt) for task in tasks)
    held_groups = {groups.key(task.key) for task in tasks if task.held_out}
    train: list[TextTask] = []
    choosing: list[TextTask] = []
    held_out: list[TextTask] = []
    for task in tasks:
        group = groups.key(task.key)
        drawn = side_of(group, eval_share) is Side.EVAL if task.held_out is None else False
        if task.held_out or drawn:
            held_out.append(task)
        elif group in held_groups:
            continue  # the environment trains on what it evaluates on
        elif side_of(f"choosing {group}", 0.5) is Side.EVAL and len(choosing) < _CHOOSING:
            choosing.append(task)
        else:
            train.append(task)
    return TaskSplit(tuple(train), tuple(choosing), tuple(held_out))


def first_texts(
    config: Config, names: Sequence[str], current: Texts, toolsets: Sequence[str] | None
) -> Texts:
    """Each text as it reads today. UsageError if it names a tool or a skill that does not exist."""
    return {name: current.get(name) or _first_text(config, name, toolsets) for name in names}


def _first_text(config: Config, name: str, toolsets: Sequence[str] | None) -> str:
    if name == SYSTEM_PROMPT:
        return config.settings.system_prompt or general_prompt(with_tools=toolsets != NO_TOOLSETS)
    if name == EXAMPLES:
        return ""
    if name.startswith(FILE):
        path = Path(name.removeprefix(FILE))
        try:
            return path.read_text("utf-8") if path.is_file() else ""
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path} cannot be read: {error}", "name a text file in UTF-8") from error
    if name.startswith(SKILL):
        return list_skills(config.home).find(name.removeprefix(SKILL)).body
    return get(name.removeprefix(TOOL)).description


@dataclass
class TextImprovement:
    """One improvement of texts: what it starts from, and what it runs with."""

    config: Config
    names: tuple[str, ...]
    current: PolicyRecord
    first: Texts
    error_rate: float
    seed: int
    spending: Spending
    at_once: int
    progress: Progress
    policy_id: str = field(init=False)
    ledger: Ledger = field(init=False)

    def prepare(self, conditions: JSONObject) -> None:
        """Opens its folder: a new one, or that of an unfinished improvement under the same conditions."""
        registry = PolicyRegistry(self.config.home)
        finished = {record.id for record in registry.policies()}
        start = {"policy": self.current.id, "first": dict(self.first), "error_rate": self.error_rate}
        digest = content_hash(canonical_json({**conditions, **start, "seed": self.seed}))
        self.policy_id = new_policy_id()
        for path in sorted(registry.folder.glob(f"*/{_CONDITIONS}")):
            if path.parent.name not in finished and _conditions(path) == digest:
                self.policy_id = path.parent.name
                self.progress("going on where the same improvement was stopped")
        folder = ensure_dir(registry.folder / self.policy_id)
        atomic_write(folder / _CONDITIONS, json.dumps({"conditions": digest, "names": list(self.names)}))
        self.ledger = Ledger(folder, self.spending)

    @property
    def run(self) -> str:
        """The run that its rollouts are recorded under."""
        return f"text-{self.policy_id}"

    async def improve(self, signal: TextSignal, proposer: Proposer, split: TaskSplit) -> Improvement:
        """Searches, compares, decides, and writes the report."""
        evaluator = Evaluator(signal, self.ledger, self.at_once)
        self.progress(f"{split}; signal: {signal.name}")
        unchanged = {name: text for name, text in self.current.texts.items() if name not in self.names}
        await self._check_first(evaluator, {**unchanged, **self.first}, split.chosen_by)
        result = await search(
            self.first, unchanged, split.train, split.chosen_by, evaluator, proposer, self.seed
        )
        self._check_signal()
        self.progress(
            f"{result.candidates - 1} candidates kept; mean score {result.first_score:.3g},"
            f" best {result.best_score:.3g}"
        )
        before, after = {**unchanged, **self.first}, {**unchanged, **result.best}
        test = SequentialTest(self.error_rate)
        if result.best != dict(self.first):
            self.progress(f"comparing on up to {len(split.held_out)} held-out tasks")
            test = await self._compare(evaluator, before, after, split.held_out)
        return self._decide(signal, proposer, split, result, after, test)

    async def _check_first(self, evaluator: Evaluator, texts: Texts, tasks: Sequence[TextTask]) -> None:
        """Says early that the scores do not vary, on tasks that the search scores in any case.

        UsageError if all these tasks have one score that is not 0. At 0 a proposal may be what is missing.
        """
        scores = await evaluator.scores(texts, tasks[:_FIRST])
        if len({score.score for score in scores}) > 1:
            return
        value = scores[0].score
        self.progress(
            f"the first {len(scores)} rollouts all scored {value:g}: so far nothing tells texts apart"
        )
        if value == 0 or len(tasks) < 2 * _FIRST:
            return
        scores = await evaluator.scores(texts, tasks)
        if {score.score for score in scores} == {value}:
            raise _constant(len(scores), value)

    def _check_signal(self) -> None:
        """UsageError if no rollout scored differently from any other: there was nothing to learn from."""
        values = {score.score for score in self.ledger.scores}
        if len(values) == 1:
            raise _constant(len(self.ledger.scores), values.pop())

    async def _compare(
        self, evaluator: Evaluator, before: Texts, after: Texts, tasks: Sequence[TextTask]
    ) -> SequentialTest:
        """Both texts on one task after the other, until the test has decided or the money is spent."""
        test = SequentialTest(self.error_rate)
        for start in range(0, len(tasks), evaluator.at_once):
            chunk = tasks[start : start + evaluator.at_once]
            sides = await asyncio.gather(evaluator.scores(before, chunk), evaluator.scores(after, chunk))
            for old, new in zip(*sides, strict=True):
                test = test.add(0.5 if old.score == new.score else float(new.score > old.score))
                if test.decision is not SequentialDecision.UNDECIDED:
                    return test
            if self.ledger.spending.cost_reached:
                self.progress("the money is spent before the comparison has decided")
                break
        return test

    def _decide(
        self,
        signal: TextSignal,
        proposer: Proposer,
        split: TaskSplit,
        result: SearchResult,
        texts: Texts,
        test: SequentialTest,
    ) -> Improvement:
        registry = PolicyRegistry(self.config.home)
        folder = registry.folder / self.policy_id
        stems = [record.name for record in registry.policies()]
        record = replace(
            self.current,
            id=self.policy_id,
            parent=self.current.id,
            method=TEXT_METHOD,
            ratings=(),
            decision=test.decision.value,
            report=str(folder / "report.md"),
            facts={"signal": signal.name, **self._facts(result, test)},
            created_at_ms=now_ms(),
            name=unused_name(f"{run_stem(self.config.home)}-text", stems),
            texts=dict(texts),
        )
        tried = test.count > 0
        sentence = (
            decision_line(test, "tasks")
            if tried
            else "Kept the old policy: no candidate was better than it on the tasks of the search."
        )
        blocks = self._blocks(record, sentence, signal, proposer, split, result)
        atomic_write(folder / "report.md", markdown(blocks))
        if tried:
            registry.add(record)
        promoted = test.decision is SequentialDecision.BETTER
        if promoted:
            registry.promote(record.id, sentence)
        return Improvement(record, promoted, sentence, folder / "report.md")

    def _facts(self, result: SearchResult, test: SequentialTest) -> JSONObject:
        spending = self.ledger.spending
        return {
            "wins": test.wins,
            "losses": test.losses,
            "ties": test.ties,
            "evidence": test.highest,
            "error_rate": test.error_rate,
            "candidates": result.candidates,
            "calls": spending.calls,
            "cost_usd": None if spending.unknown_cost else round(spending.cost_usd, 6),
        }

    def _blocks(
        self,
        record: PolicyRecord,
        sentence: str,
        signal: TextSignal,
        proposer: Proposer,
        split: TaskSplit,
        result: SearchResult,
    ) -> list[Block]:
        facts, refused = record.facts, getattr(proposer, "refused", 0)
        cost = "of unknown cost" if facts["cost_usd"] is None else f"${facts['cost_usd']:.4g}"
        scores = interval([score.score for score in self.ledger.scores])
        hashed = hashes(record.texts)
        return [
            Block(
                f"Policy {record.label}",
                (
                    sentence,
                    f"Texts that are no better are promoted with a probability of at most {self.error_rate:g}"
                    f" (sequential test); it takes {fewest_wins(self.error_rate)} comparisons or more.",
                ),
            ),
            Block(
                "The search",
                (
                    f"Signal: {signal.name}. Proposals: {proposer.name}, {refused} refused.",
                    f"{split}.",
                    f"{result.candidates - 1} candidates were kept; mean score on the tasks that choose:"
                    f" {result.first_score:.3g} before, {result.best_score:.3g} for the best.",
                    f"{len(self.ledger.scores)} rollouts with a mean score of {scores.mean:.3g},"
                    f" {facts['calls']} model calls, {cost}.",
                ),
            ),
            *(
                Block(
                    f"Text {name}",
                    (f"hash {hashed[name]}",),
                    quotes=(("change", diff(self.first[name], record.texts[name])),),
                )
                for name in self.names
            ),
        ]


def _constant(count: int, value: float) -> UsageError:
    return UsageError(
        f"all {count} rollouts scored {value:g}: the signal tells no text from another",
        "look at the reward function, or choose harder or easier tasks",
    )


def diff(before: str, after: str) -> str:
    """The lines that go and come; the text itself if there was none."""
    if not before:
        return after
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "before", "after", lineterm="")
    return "\n".join(lines) or "(unchanged)"


def _conditions(path: Path) -> str:
    try:
        return str(parse_object(path.read_text("utf-8")).get("conditions"))
    except (OSError, ValueError):
        return ""


def prepare_split(tasks: Sequence[TextTask], eval_share: float, error_rate: float) -> TaskSplit:
    """UsageError if there is too little to learn from, to choose by, or to decide with."""
    split = split_tasks(tasks, eval_share)
    check_decidable(len(split.held_out), error_rate, "bring more tasks")
    if not split.train or not split.chosen_by:
        raise UsageError(
            f"{len(tasks)} tasks are too few to search with: {split}", "add tasks, or lower --eval-share"
        )
    return split


def guard_of(config: Config, tasks: Sequence[TextTask]) -> Guard:
    return Guard.of([task.reference for task in tasks if task.reference], config.secrets)


def error_rate_now(registry: PolicyRegistry, current: PolicyRecord, total: float) -> float:
    """The error rate that is left for the next candidate against this policy."""
    return spent_error_rate(total, registry.attempts(current.id) + 1)
