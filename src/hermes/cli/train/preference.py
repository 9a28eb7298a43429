"""`hermes train dpo`, `kto` and `reward`: a policy, or a reward model, from what people preferred."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hermes.cli.options import add_options, filter_options, json_option, stored_variables
from hermes.cli.train.common import COMMON, OFFLINE

_NOT_NEGATIVE = click.FloatRange(min=0)
_ABOVE_0 = click.FloatRange(min=0, min_open=True)
_FILES = click.argument("files", nargs=-1, type=click.Path(path_type=Path, exists=True))
_PAIRS = (
    click.option(
        "--pairs-from",
        multiple=True,
        type=click.Choice(["choice", "rating", "reward", "retry"]),
        help="Evidence that makes pairs, repeatable; the first that has any on two answers decides. "
        "Default: choice, rating, retry.",
    ),
    click.option(
        "--min-margin", default=0.0, type=_NOT_NEGATIVE, help="Least difference of ratings or rewards."
    ),
)
_ROWS = (
    click.option(
        "--eval-share",
        default=0.1,
        show_default=True,
        type=click.FloatRange(0, 0.9),
        help="Share of tasks held out for evaluation.",
    ),
    click.option(
        "--eval-file",
        "eval_files",
        multiple=True,
        type=click.Path(path_type=Path, exists=True),
        help="Rows to evaluate on, instead of a share of the tasks; repeatable.",
    ),
    click.option("--min-rows", default=8, show_default=True, type=click.IntRange(min=1), help="Least rows."),
    click.option("--all", "everything", is_flag=True, help="Store: also trajectories that did not complete."),
)
_REFERENCE = click.option(
    "--reference",
    metavar="WEIGHTS",
    help="What the policy is compared with: base, answers (the adapter that the answers came from), or "
    "weights as in --start. Default: --start, else base.",
)
_REPLAY = (
    click.option(
        "--replay",
        "replay_files",
        multiple=True,
        metavar="FILE",
        type=click.Path(path_type=Path, exists=True),
        help="SFT rows of an earlier skill, trained beside the verdicts so that it is kept; repeatable.",
    ),
    click.option(
        "--replay-weight",
        default=1.0,
        show_default=True,
        type=_ABOVE_0,
        help="Weight of the replayed rows' cross-entropy.",
    ),
)


@click.command()
@_FILES
@add_options(*COMMON, *OFFLINE, *_PAIRS, *_ROWS, *_REPLAY)
@_REFERENCE
@click.option(
    "--loss",
    default="sigmoid",
    show_default=True,
    type=click.Choice(["sigmoid", "robust", "ipo", "sigmoid_norm", "simpo"]),
    help="sigmoid is DPO; sigmoid_norm and simpo are length-normalised, simpo without a reference.",
)
@click.option("--beta", default=0.1, show_default=True, type=_ABOVE_0, help="Strength of the reference.")
@click.option(
    "--label-smoothing",
    default=0.0,
    show_default=True,
    type=click.FloatRange(0, 0.5, max_open=True),
    help="Share of pairs whose label is assumed to be wrong (sigmoid, robust, simpo).",
)
@click.option(
    "--target-margin",
    default=0.5,
    show_default=True,
    type=_NOT_NEGATIVE,
    help="Margin that the loss simpo aims at.",
)
@click.option(
    "--sft-weight",
    default=0.0,
    show_default=True,
    type=_NOT_NEGATIVE,
    help="Weight of the chosen answers' cross-entropy.",
)
@filter_options
@json_option
@stored_variables
def dpo(**params: Any) -> None:
    """Train on preference pairs (DPO).

    They come from FILES (trl-preference), or from stored verdicts.
    """
    from hermes.cli.train.preference_run import read_dpo_options, run_dpo

    run_dpo(read_dpo_options(params))


@click.command()
@_FILES
@add_options(*COMMON, *OFFLINE, *_ROWS, *_REPLAY)
@_REFERENCE
@click.option("--beta", default=0.1, show_default=True, type=_ABOVE_0, help="Strength of the reference.")
@click.option(
    "--desirable-weight", type=_ABOVE_0, help="Weight of good answers; both classes count equally if unset."
)
@click.option("--undesirable-weight", type=_ABOVE_0, help="Weight of bad answers.")
@click.option(
    "--good-rating",
    type=click.FloatRange(1, 5, min_open=True),
    help="Answers rated at least this are good, all others bad. If unset, 4 and 5 are good, 1 and 2 bad, "
    "and 3 is left out.",
)
@filter_options
@json_option
@stored_variables
def kto(**params: Any) -> None:
    """Train on answers that are good or bad (KTO).

    They come from FILES (trl-unpaired), or from stored ratings.
    """
    from hermes.cli.train.preference_run import read_kto_options, run_kto

    run_kto(read_kto_options(params))


@click.command()
@_FILES
@add_options(*COMMON, *OFFLINE, *_PAIRS, *_ROWS)
@click.option(
    "--loss",
    default="bradley-terry",
    show_default=True,
    type=click.Choice(["bradley-terry", "pointwise"]),
    help="bradley-terry learns from pairs, pointwise from ratings of 1 to 5.",
)
@click.option(
    "--margin",
    default=1.0,
    show_default=True,
    type=_NOT_NEGATIVE,
    help="How far apart the strongest preference is scored; weaker ones less. 0: no margin.",
)
@click.option(
    "--centre", default=0.01, show_default=True, type=_NOT_NEGATIVE, help="Weight that keeps scores around 0."
)
@click.option("--members", default=1, show_default=True, type=click.IntRange(1, 16), help="Ensemble size.")
@click.option("--question", metavar="TEXT", help="What the model is asked about the answer.")
@click.option(
    "--words", type=(str, str), default=("good", "bad"), show_default=True, help="The two replies compared."
)
@filter_options
@json_option
@stored_variables
def reward(**params: Any) -> None:
    """A reward model from pairs or ratings in FILES, or from stored verdicts."""
    from hermes.cli.train.reward_run import read_reward_options, run_reward

    run_reward(read_reward_options(params))
