"""The options of `hermes rate`, declared once (`config/option.py`)."""

from __future__ import annotations

from typing import Literal

from hermes.config.option import Options, option


class VerdictOptions(Options):
    trajectory: str = option(..., "", argument=True)
    verdict: (
        Literal["good", "bad", "neutral", "first-bad", "tie", "both-bad", "1", "2", "3", "4", "5"] | None
    ) = option(None, "", argument=True)
    over: str | None = option(None, "Compare with this one: TRAJECTORY is the better.", metavar="TRAJECTORY")
    strength: int | None = option(None, "1 slightly, 2 clearly, 3 much better.", ge=1, le=3)
    step: int | None = option(None, "The answer that this step belongs to.", ge=0)
    other_step: int | None = option(None, "Step of the trajectory that --over names.", ge=0)
    per_step: bool = option(False, "The verdict is on that step alone, not on its turn.")
    comment: str | None = option(None, "Reason.")
    labels: tuple[str, ...] = option((), "A word of your own; repeatable.", "--label")
    rater: str | None = option(None, "Name of the rater; default: your user name.")
    replaces: str | None = option(None, "Id of your rating that this one corrects.", metavar="RATING")


class RaterOptions(Options):
    reward: str | None = option(None, "A rule whose rewards are stored, or FILE.py:FUNCTION.", metavar="NAME")
    judge: str | None = option(None, "A chat model that is asked for 1 to 5.", metavar="MODEL")
    reward_model: str | None = option(None, "A served reward model: 'hermes reward serve'.", metavar="URL")
    rubric: str | None = option(None, "What the judge is to look at.")
    limit: int | None = option(None, "Most trajectories.", ge=1)


class QueueOptions(Options):
    name: str = option("default", "", argument=True, metavar="[NAME]")
    rule: Literal["random", "spread", "disagreement", "uncertainty", "query"] | None = option(
        None,
        "What comes first; for a new queue. random, groups whose rewards differ, judge against person, "
        "what a reward model is unsure of, or what the filters select.",
    )
    mode: Literal["thumb", "score", "pair", "step"] | None = option(None, "What is asked; default: thumb.")
    seed: int | None = option(None, "Seed of the order; 0 if unset.")
    raters_per_item: int | None = option(None, "Number of raters for an item; 1 if unset.", "--raters", ge=1)
    repeat_share: float | None = option(
        None, "Share of items that are shown twice; 0.05 if unset.", "--repeats", hidden=True, ge=0, le=0.5
    )
    limit: int | None = option(None, "Most items of a new queue.", ge=1)
    where: tuple[str, ...] = option((), "As for 'hermes export'; repeatable.", metavar="CONDITION")
    rated_too: bool = option(False, "Also what a person has rated already.", "--all", former=("--rated-too",))
    rater: str | None = option(None, "Your name; default: your user name.")
    listing: bool = option(False, "List the queues and their progress.", "--list")
    make: bool = option(False, "Make the queue or add new items, and rate nothing.")
    delete: bool = option(False, "Delete the queue; the ratings given in it stay.")
    yes: bool = option(False, "Do not ask before --delete.")
