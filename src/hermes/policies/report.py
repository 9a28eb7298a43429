"""The page about one improvement: what was learned, examples before and after, what got worse.

It is Markdown. Text of models is quoted as code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hermes.disk.files import atomic_write, ensure_dir
from hermes.policies.answers import AnswerPair
from hermes.policies.rows import ImprovementRows
from hermes.policies.scoring import ComparisonGain
from hermes.policies.sequential import SequentialDecision, SequentialTest, fewest_wins
from hermes.safety.text import printable
from hermes.training.policy_registry import PolicyRecord

TEXT_METHOD = "text"
"""The method of a policy whose texts were improved."""
_EXAMPLES = 5
_CHARS = 600


@dataclass(frozen=True, slots=True)
class ImprovementFacts:
    """Everything that the page is made of."""

    record: PolicyRecord
    reason: str
    """Why this method."""
    rows: ImprovementRows
    ratings_test: SequentialTest
    gains: Sequence[ComparisonGain]
    answers: Sequence[AnswerPair]
    answers_test: SequentialTest | None
    rater: str | None
    promoted: bool


def write_report(facts: ImprovementFacts, folder: Path) -> Path:
    """Writes report.md into the folder; its path."""
    path = ensure_dir(folder) / "report.md"
    atomic_write(path, markdown(_blocks(facts)))
    return path


@dataclass(frozen=True, slots=True)
class Block:
    """A heading with lines, a table, or texts of models."""

    heading: str
    lines: tuple[str, ...] = ()
    table: tuple[tuple[str, ...], ...] = ()
    quotes: tuple[tuple[str, str], ...] = ()
    """Title and text."""


def verdict_line(facts: ImprovementFacts) -> str:
    """One sentence: what was decided and on which evidence."""
    test = facts.ratings_test
    if test.decision is SequentialDecision.BETTER and not facts.promoted:
        score = _score(test, "ratings")
        return f"Kept the old policy: better on ratings ({score}), but worse on held-out tasks."
    return decision_line(test, "ratings")


def decision_line(test: SequentialTest, on: str) -> str:
    """The verdict of the test about the candidate, on held-out ratings or tasks."""
    score = _score(test, on)
    evidence = f"evidence {test.highest:.3g} of the {1 / test.error_rate:.0f} that promote"
    if test.decision is SequentialDecision.BETTER:
        return f"Promoted: the candidate is better ({score}; {evidence})."
    word = "worse" if test.decision is SequentialDecision.WORSE else "not shown to be better"
    return f"Kept the old policy: the candidate is {word} ({score}; {evidence})."


def _score(test: SequentialTest, on: str) -> str:
    return f"{test.wins} wins, {test.losses} losses, {test.ties} ties on held-out {on}"


def _blocks(facts: ImprovementFacts) -> list[Block]:
    record, rows, test = facts.record, facts.rows, facts.ratings_test
    blocks = [
        Block(
            f"Policy {record.label}",
            (
                verdict_line(facts),
                f"A candidate that is no better is promoted with a probability of at most {test.error_rate:g}"
                f" (sequential test); it takes {fewest_wins(test.error_rate)} comparisons or more.",
            ),
        ),
        Block(
            "What was learned",
            (f"Method: {facts.reason}", f"Split: {rows.groups}; a group is trained on, or held out."),
            (
                ("", "to train on", "held out"),
                ("pairs", str(len(rows.pairs)), str(len(rows.held_out_pairs))),
                ("rated answers", str(len(rows.spans)), str(len(rows.held_out_spans))),
                ("rating events", str(len(record.ratings)), ""),
            ),
        ),
        Block(
            "Lineage",
            (
                f"from policy {record.parent}, base model {record.base_model}",
                f"weights {record.weights}",
                f"training run {record.run_id}",
            ),
        ),
        *_answer_blocks(facts),
    ]
    if rows.left_out:
        lines = tuple(f"{count}: {reason}" for reason, count in rows.left_out.most_common())
        blocks.append(Block("Left out", lines))
    return blocks


def _answer_blocks(facts: ImprovementFacts) -> list[Block]:
    quotes: list[tuple[str, str]] = []
    for pair in facts.answers[:_EXAMPLES]:
        scores = "" if pair.result is None else f" ({pair.before_score:.2g} → {pair.after_score:.2g})"
        quotes += [
            (f"asked{scores}", pair.prompt[-1].content),
            ("before", pair.before),
            ("after", pair.after),
        ]
    blocks = [Block("Before and after", quotes=tuple(quotes))] if quotes else []
    if facts.answers_test is not None:
        test = facts.answers_test
        counts = f"{test.wins} better, {test.losses} worse, {test.ties} equal"
        line = f"{facts.rater}: {counts} ({test.decision.value})"
        blocks.append(Block("Held-out tasks", (line,)))
    lost = sorted(
        (gain for gain in facts.gains if gain.result == 0), key=lambda g: g.better_gain - g.worse_gain
    )
    worse: list[tuple[str, str]] = []
    for gain in lost[:_EXAMPLES]:
        comparison = gain.comparison
        worse += [
            ("asked", comparison.better.prompt[-1].content),
            (f"preferred, {gain.better_gain:+.3f} a token", _text(comparison.better.completion)),
            (f"not preferred, {gain.worse_gain:+.3f} a token", _text(comparison.worse.completion)),
        ]
    worse += [
        (f"answered worse ({pair.before_score:.2g} → {pair.after_score:.2g})", pair.after)
        for pair in facts.answers
        if pair.result == 0 and pair.before_score is not None and pair.after_score is not None
    ][:_EXAMPLES]
    lines = (f"{len(lost)} of {len(facts.gains)} held-out comparisons went against people.",)
    return [*blocks, Block("What got worse", lines, quotes=tuple(worse))]


def _text(messages: Sequence[object]) -> str:
    return "\n".join(str(getattr(message, "content", "")) for message in messages)


def _clip(text: str) -> str:
    plain = printable(text)
    return plain if len(plain) <= _CHARS else plain[:_CHARS] + "…"


def markdown(blocks: Sequence[Block]) -> str:
    return "\n".join(_section(block, "##" if number else "#") for number, block in enumerate(blocks))


def _section(block: Block, mark: str) -> str:
    parts = [f"{mark} {block.heading}", *(printable(line) for line in block.lines)]
    if block.table:
        head, *body = block.table
        rows = [f"| {' | '.join(row)} |" for row in body]
        parts.append("\n".join([f"| {' | '.join(head)} |", "|" + "---|" * len(head), *rows]))
    for title, text in block.quotes:
        quoted = "\n".join(f"    {line}" for line in _clip(text).splitlines() or [""])
        parts.append(f"*{title}*\n\n{quoted}")
    return "\n\n".join(parts) + "\n"


def append_steps(path: Path, steps: Sequence[PolicyRecord]) -> None:
    """Adds to the report of the last of several improvements what each of them brought."""
    counts = ("wins", "losses", "ties")
    rows = [
        (
            "texts" if record.method == TEXT_METHOD else f"weights ({record.method})",
            record.label,
            record.decision or "no candidate",
            *(str(record.facts.get(name, 0)) for name in counts),
        )
        for record in steps
    ]
    block = Block("What each brought", table=(("", "policy", "against the one before", *counts), *rows))
    atomic_write(path, f"{path.read_text('utf-8')}\n{_section(block, '##')}")
