"""The state of a batch run as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hermes.cli.render import money, one_line
from hermes.core import JSONObject
from hermes.safety.text import printable

_MESSAGE_CHARS = 200


def status_text(facts: JSONObject) -> str:
    return "\n".join(f"{name:<10} {value}" if name else value for name, value in _lines(facts))


def _lines(facts: JSONObject) -> Iterator[tuple[str, str]]:
    yield "run", printable(facts["run"])
    yield "state", _state(facts)
    yield "model", printable(facts["model"])
    yield "dataset", printable(facts["dataset"])
    yield "samples", f"done {facts['done']}, filtered {facts['filtered']}, failed {facts['failed']}"
    unknown = f" and unknown for {facts['unpriced']}" if facts["unpriced"] and facts["cost_usd"] else ""
    yield "cost", f"{money(facts['cost_usd'])}{unknown}"
    if facts["continued"]:
        yield "continued", continued_text(facts)
    if facts["scored"]:
        yield "reward", f"mean {facts['mean_reward']:.3f} over {facts['scored']} scored"
    yield from failure_lines(facts["failures"], "failed", "the same command runs them again")
    yield from failure_lines(facts["grader_failures"], "unscored", "the reward function failed")


def continued_text(facts: JSONObject) -> str:
    """How many samples went on after an interruption, and what of their record could be used."""
    return (
        f"{facts['continued']} interrupted samples: {facts['replayed_calls']} recorded model calls used, "
        f"{facts['repeated_calls']} asked again"
    )


def _state(facts: JSONObject) -> str:
    if facts["state"] is None:
        return f"{facts['finished']} samples finished (an older run: its total was not recorded)"
    text = f"{facts['state']}: {facts['finished']} of {facts['total']} samples ({facts['percent']:g} %)"
    if facts["eta_s"] is not None:
        minutes, seconds = divmod(facts["eta_s"], 60)
        hours, minutes = divmod(minutes, 60)
        text += f", {facts['rate_per_s']:.2g}/s, ETA {hours}:{minutes:02}:{seconds:02}"
    if facts["state"] == "stopped":
        text += "; the command that started it continues it"
    return text


def failure_lines(causes: Sequence[JSONObject], title: str, note: str) -> Iterator[tuple[str, str]]:
    """One line for each cause, with the message of one failure below it."""
    for cause in causes:
        yield title, f"{cause['count']} by {printable(cause['cause'])} ({note}), for example:"
        yield "", f"  {one_line(cause['message'], _MESSAGE_CHARS)}"
