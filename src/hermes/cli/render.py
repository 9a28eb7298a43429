"""Trajectories as text for a terminal. Pure: data in, safe text out (colour is click's to strip)."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from datetime import datetime

import click

from hermes.cli.tables import columns
from hermes.core import Message, Rating, Reward, Role, Step, StepKind, ToolCall, Trajectory
from hermes.data.diff import Difference
from hermes.safety.output.columns import terminal_width
from hermes.safety.text import clip, printable, visible
from hermes.store import SearchHit, Summary
from hermes.store.stats import Stats

_OUTPUT_LINES = 20
_WIDE, _SHORT_ID = 110, 8
_COLOURS = {"system": "bright_black", "user": "green", "assistant": "cyan", "tool": "yellow"}


def summary_table(rows: Sequence[Summary]) -> str:
    """On a narrow terminal an id is its end, which every command takes too."""
    id_chars = _SHORT_ID if terminal_width() < _WIDE else 0
    names = "id when agent model end turns tools tokens cost reward rating task"
    table = [tuple(names.split())]
    for row in rows:
        errors = f" ({row.tool_errors} failed)" if row.tool_errors else ""
        table.append(
            (
                row.id[-id_chars:],
                local_time(row.created_at_ms),
                printable(row.agent or ""),
                printable(row.model),
                row.stop_reason,
                str(row.turns),
                f"{row.tool_calls}{errors}",
                str(row.usage.total),
                money(row.cost_usd),
                "" if row.reward is None else f"{row.reward:g}",
                "" if row.rating is None else f"{row.rating:g}",
                one_line(row.task, 48),
            )
        )
    return columns(table, less_important=("tokens", "turns", "tools", "cost", "rating", "model"))


def render_trajectory(
    trajectory: Trajectory,
    ratings: Sequence[Rating],
    rewards: Sequence[Reward],
    *,
    with_examples: bool = False,
) -> str:
    """The whole trajectory. Examples that only the model saw are counted, unless `with_examples`."""
    header, outcome = trajectory.header, trajectory.outcome
    end = f"{outcome.stop_reason.value}" if outcome else "running"
    if outcome and outcome.boundary:
        end += f" ({outcome.boundary.value}{': ' + printable(outcome.detail) if outcome.detail else ''})"
    facts = [
        f"trajectory {header.id}  {local_time(header.created_at_ms)}  {header.source.value}",
        f"model {printable(header.model)}  end {end}  turns {trajectory.turns}"
        f"  tokens {trajectory.usage.prompt} in, {trajectory.usage.completion} out"
        f"  cost {money(trajectory.cost_usd)}",
    ]
    if header.parent_id and header.relation:
        facts.append(f"{header.relation.value} of {header.parent_id}")
    facts += [f"reward {reward.value:g} ({printable(reward.source)})" for reward in rewards]
    facts += [f"rating {rating.value:+g} by {printable(rating.rater)}" for rating in ratings]
    steps = [step for step in trajectory.steps if with_examples or not step.ephemeral]
    if hidden := len(trajectory.steps) - len(steps):
        facts.append(f"{hidden} messages that only the model saw are not shown; --raw shows them")
    return "\n".join([click.style("\n".join(facts), bold=True), *(render_step(step) for step in steps)])


def render_step(step: Step) -> str:
    role = step.message.role.value
    title = click.style(f"\n[{step.index}] {role}", fg=_COLOURS[role], bold=True)
    notes = _notes(step)
    if notes:
        title += click.style(f"  {notes}", dim=True)
    return f"{title}\n{render_message(step.message)}"


def render_message(message: Message) -> str:
    parts = []
    if message.reasoning:
        parts.append(click.style("(thinking) " + fold(message.reasoning), dim=True))
    if message.content:
        text = readable_result(message.content) if message.role is Role.TOOL else message.content
        parts.append(fold(text))
    parts += [f"-> {call_text(call)}" for call in message.tool_calls]
    parts += [f"(image {clip(printable(image), 60)})" for image in message.images]
    return "\n".join(parts) or "(empty)"


def call_text(call: ToolCall) -> str:
    """name(key=value, …); the raw text if it does not parse."""
    if call.error:
        return f"{printable(call.name) or '?'} malformed ({printable(call.error)}): {fold(call.arguments)}"
    try:
        arguments = call.parsed()
    except ValueError as error:
        return f"{printable(call.name)} malformed ({printable(str(error))}): {fold(call.arguments)}"
    text = ", ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in arguments.items())
    return visible(f"{call.name}({text})")


def _notes(step: Step) -> str:
    if step.call is not None:
        notes = [f"{step.call.latency_ms / 1000:.1f} s", f"{step.call.usage.completion} tokens"]
        if step.call.attempts > 1:
            notes.append(f"{step.call.attempts} attempts")
        if step.call.tokens is not None:
            notes.append("token-exact")
        return ", ".join(notes)
    if step.result is not None:
        state = "ok" if step.result.ok else f"{step.result.error_kind}"
        code = "" if step.result.exit_code is None else f", exit {step.result.exit_code}"
        return f"{printable(step.result.name)}: {state}{code}, {step.result.duration_ms / 1000:.2f} s"
    return "not part of the dataset" if step.ephemeral and step.kind is StepKind.INPUT else ""


def hit_lines(hits: Sequence[SearchHit]) -> str:
    return "\n".join(
        f"{hit.trajectory_id} [{hit.step_index}] {hit.role}: {printable(hit.snippet)}" for hit in hits
    )


def stats_text(stats: Stats) -> str:
    usage = stats.usage
    lines = [
        f"trajectories  {stats.trajectories}",
        *(f"  {name:<14}{count}" for name, count in stats.by_stop_reason.items()),
        "models",
        *(f"  {printable(name):<40} {count}" for name, count in stats.by_model.items()),
        f"model calls   {stats.turns}",
        f"tokens        {usage.prompt} in ({usage.cached_input_tokens} cached), {usage.completion} out"
        f" ({usage.reasoning_tokens} thinking)",
        f"cost          {money(stats.cost_usd)}"
        + (f" ({stats.unpriced} unpriced)" if stats.unpriced else ""),
    ]
    if stats.rewarded:
        lines.append(f"mean reward   {stats.mean_reward:.3f} over {stats.rewarded}")
    if stats.rated:
        lines.append(f"mean rating   {stats.mean_rating:.2f} over {stats.rated}")
    if stats.tools:
        lines.append("tools")
    for name, tool in stats.tools.items():
        causes = ", ".join(f"{kind} {count}" for kind, count in tool.by_error.items())
        lines.append(
            f"  {printable(name):<20} {tool.calls} calls, {tool.failures} failed"
            + (f" ({causes})" if causes else "")
        )
    return "\n".join(lines)


def diff_text(left: Trajectory, right: Trajectory, difference: Difference) -> str:
    if difference.equal:
        return f"equal: {difference.shared} messages, word for word"
    a, b = (
        [
            line
            for message in side
            for line in f"{message.role.value}:\n{render_message(message)}".splitlines()
        ]
        for side in (difference.left, difference.right)
    )
    head = f"the first {difference.shared} messages are equal; then:"
    body = difflib.unified_diff(a, b, left.header.id, right.header.id, lineterm="", n=2)
    return "\n".join([head, *body])


def fold(text: str) -> str:
    """Safe for a terminal and short: the middle of a long text is replaced by the number of lines."""
    lines = printable(clip(text, 20_000)).splitlines()
    if len(lines) <= _OUTPUT_LINES:
        return "\n".join(lines)
    head, tail = lines[: _OUTPUT_LINES // 2], lines[-_OUTPUT_LINES // 4 :]
    return "\n".join([*head, f"… {len(lines) - len(head) - len(tail)} lines more …", *tail])


def readable_result(content: str) -> str:
    """A tool's result for reading: where it is a JSON object, one field a line, with texts written out."""
    if not content.startswith("{"):
        return content
    try:
        data = json.loads(content)
    except ValueError:
        return content
    if not isinstance(data, dict):
        return content
    return "\n".join(_field_text(name, value) for name, value in data.items())


def _field_text(name: str, value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"{name}:\n{text.rstrip()}" if "\n" in text.rstrip() else f"{name}: {text}"


def one_line(text: str, width: int) -> str:
    flat = " ".join(printable(text).split())
    return flat if len(flat) <= width else flat[: width - 1] + "…"


def local_time(moment_ms: int) -> str:
    """The minute, in local time; imported conversations may have none."""
    if moment_ms <= 0:
        return "no date"
    return datetime.fromtimestamp(moment_ms / 1000).strftime("%Y-%m-%d %H:%M")


def money(usd: float | None) -> str:
    """An amount in US dollars; an unknown one is printed as unknown."""
    return "unknown" if usd is None else f"${usd:.4f}" if usd else "$0"
