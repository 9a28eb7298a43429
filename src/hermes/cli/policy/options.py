"""The options of `hermes improve`, declared once."""

from __future__ import annotations

from pathlib import Path

from hermes.config.option import Options, option
from hermes.policies.improve import ImproveSettings


class TextOptions(Options):
    """What only a search for texts takes."""

    text: str | None = option(
        None,
        "Improve texts instead of weights: system_prompt, examples, tool:NAME, skill:NAME, file:PATH.",
        metavar="NAMES",
    )
    tasks: Path | None = option(
        None, "Tasks to improve on, as for 'hermes batch'.", path="file", metavar="FILE"
    )
    env: str | None = option(
        None, "Environment to improve on instead of a file of tasks.", metavar="NAME|FILE.py"
    )
    model: str | None = option(
        None, "Model whose texts improve; default: the current policy.", metavar="MODEL"
    )
    reflect_with: str | None = option(None, "Model that proposes texts.", metavar="MODEL")
    proposals: Path | None = option(
        None, "File of texts to try instead, with a blank line after each.", path="file", metavar="FILE"
    )
    toolsets: str | None = option(None, "Toolsets of the agent; 'none' for no tools.", metavar="A,B")
    max_calls: int = option(600, "Most model calls of the search; the comparison comes on top.", ge=1)
    max_cost: float | None = option(None, "Most US dollars, with the comparison.", gt=0)
    concurrency: int = option(8, "Rollouts at once.", ge=1)


class ImproveOptions(TextOptions, ImproveSettings):
    """What both kinds of improvement take, and what only that of weights takes."""

    reward: str | None = option(None, "Scores answers to held-out tasks.", metavar="FILE.py:FUNCTION")
    judge: str | None = option(None, "Chat model that scores answers instead, from 1 to 5.", metavar="MODEL")
    reward_model: str | None = option(None, "Served reward model that scores answers instead.", metavar="URL")
    rubric: str | None = option(None, "What the judge is to look at.")
    watch: bool = option(False, "Wait for ratings, and improve whenever there are enough.")
    min_new: int = option(50, "New ratings that --watch waits for.", ge=1)
