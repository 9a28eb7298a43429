"""A comparison of models as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hermes.batch.compare.attempts import Divergence
from hermes.batch.compare.report_html import score_text
from hermes.batch.compare.scores import Attempt, Comparison, ModelPair, Score
from hermes.cli.render import money, one_line, render_message
from hermes.cli.tables import columns
from hermes.core import Message
from hermes.safety.text import printable

_MESSAGE_CHARS = 160


def bench_text(comparison: Comparison, divergences: Sequence[Divergence]) -> str:
    parts = [columns([_heading(comparison), *(_score_row(score, comparison) for score in comparison.scores)])]
    if comparison.pairs:
        parts.append("\n".join(_pair_line(pair, comparison.binary) for pair in comparison.pairs))
    if divergences:
        parts.append("\n".join(line for divergence in divergences for line in _divergence_lines(divergence)))
    return "\n\n".join(parts)


def _heading(comparison: Comparison) -> Sequence[str]:
    name = "pass rate" if comparison.binary else "mean reward"
    rest = "samples,failed,unscored,ended,cost,call p50,call p90,tokens,turns"
    return ("model", name, "95 % interval", *rest.split(","))


def _score_row(score: Score, comparison: Comparison) -> Sequence[str]:
    """Empty columns are dropped, so a comparison without scores has none."""
    ends = (score.interval.low, score.interval.high) if score.interval else ()
    low_high = [score_text(end, comparison.binary) for end in ends]
    ended = ", ".join(f"{outcome} {count}" for outcome, count in score.outcomes.items())
    return (
        printable(score.model),
        score_text(score.score, comparison.binary) if comparison.graded else "",
        " to ".join(low_high),
        str(score.samples),
        str(score.failed or ""),
        str(score.ungraded or ""),
        ended,
        money(score.cost_usd),
        _ms(score.latency_p50_ms),
        _ms(score.latency_p90_ms),
        "" if score.mean_tokens is None else f"{score.mean_tokens:.0f}",
        "" if score.mean_turns is None else f"{score.mean_turns:.1f}",
    )


def _pair_line(pair: ModelPair, binary: bool) -> str:
    between = f"{printable(pair.left)} against {printable(pair.right)}"
    if pair.difference is None:
        return f"{between}: no task that both were scored on"
    scale, unit = (100, " points") if binary else (1, "")
    ends = (pair.interval.low, pair.interval.high) if pair.interval else ()
    interval = " to ".join(f"{scale * end:+.3g}" for end in ends)
    return (
        f"{between}: {pair.wins} won, {pair.losses} lost, {pair.ties} tied;"
        f" difference {scale * pair.difference:+.3g}{unit}{f' ({interval})' if interval else ''},"
        f" p = {pair.p_value:.3f}"
    )


def _divergence_lines(divergence: Divergence) -> Iterator[str]:
    shared = divergence.difference.shared
    yield f"task {printable(divergence.key)}: after {shared} equal message{'' if shared == 1 else 's'}"
    sides = (
        (divergence.left_model, divergence.left, divergence.difference.left),
        (divergence.right_model, divergence.right, divergence.difference.right),
    )
    for model, attempt, messages in sides:
        yield f"  {printable(model)} ({_end(attempt)}, {attempt.trajectory_id}): {_first_message(messages)}"


def _first_message(messages: Sequence[Message]) -> str:
    if not messages:
        return "nothing more"
    return f"{messages[0].role.value}: {one_line(render_message(messages[0]), _MESSAGE_CHARS)}"


def _end(attempt: Attempt) -> str:
    return attempt.outcome if attempt.reward is None else f"reward {attempt.reward:g}"


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.0f} ms"
