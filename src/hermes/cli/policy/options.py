"""The options of `hermes improve`, declared once."""

from __future__ import annotations

from pathlib import Path

from hermes.cli.policy.signal import SignalOptions
from hermes.config.option import Options, option
from hermes.policies.improve import ImproveSettings
from hermes.policies.rows import Method


class TextOptions(Options):
    """Options that only a search for texts takes."""

    text: str | None = option(
        None,
        "Improve texts instead of weights: system_prompt, examples, tool:NAME, skill:NAME, file:PATH.",
        metavar="NAMES",
    )
    then: Method | None = option(None, "Then train the weights too, on ratings, by this method.")
    agent: str | None = option(
        None,
        "Program that works on the tasks, as for 'hermes rl start --agent'; its texts are file:PATH.",
        metavar="COMMAND",
    )
    agent_setup: str | None = option(
        None, "Command that prepares the workspace of --agent; file:PATH is written after it."
    )
    reflect_with: str | None = option(None, "Model that proposes texts.", metavar="MODEL")
    proposals: Path | None = option(
        None, "File of texts to try instead, with a blank line after each.", path="file", metavar="FILE"
    )
    max_calls: int = option(600, "Most model calls of the search; the comparison comes on top.", ge=1)


class ImproveOptions(TextOptions, SignalOptions, ImproveSettings):
    """Options of both kinds of improvement, and of when to start one."""

    watch: bool = option(False, "Wait for ratings, and improve whenever there are enough.")
    min_new: int = option(50, "New ratings that --watch waits for.", ge=1)
