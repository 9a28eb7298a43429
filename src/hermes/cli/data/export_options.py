"""The options of `hermes export`, and what they ask for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes.cli.options import build_filter, filter_options
from hermes.errors import UsageError

if TYPE_CHECKING:
    from hermes.data.curate.base import Rule
    from hermes.data.export.run import ExportPlan
    from hermes.data.export.select import TrajectorySelection
    from hermes.data.formats.base import Format
    from hermes.data.recipes.base import TrainerRecipe

FILTER_NAMES = (
    *("model", "tool", "stop_reason", "source", "run_id", "session_id", "since", "until", "text"),
    *("min_reward", "max_reward", "min_rating", "max_rating"),
)
"""The shared filters, as `build_filter` takes them."""
_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
_SHARE = click.FloatRange(0, 1)
_OPTIONS = (
    click.option("--format", "form", metavar="NAME", help="See --formats; sharegpt if none is named."),
    click.option("--formats", "listing", is_flag=True, help="List the formats and stop."),
    click.option(
        "--output",
        type=click.Path(path_type=Path),
        help="File to write: .jsonl, .parquet or .arrow; for sts also a folder.",
    ),
    click.option(
        "--roles",
        type=click.Choice(["human-gpt", "user-assistant"]),
        default="human-gpt",
        show_default=True,
        help="ShareGPT: the role names your trainer expects.",
    ),
    click.option(
        "--calls",
        type=click.Choice(["structured", "text"]),
        default="structured",
        show_default=True,
        help="trl and axolotl formats: tool calls as fields, or as text for templates without tools.",
    ),
    click.option("--all", "everything", is_flag=True, help="Also those that did not complete."),
    click.option("--compressed", is_flag=True, help="Take a trajectory's compressed version if it has one."),
    click.option(
        "--where", multiple=True, metavar="COND", help="turns<=10, metadata.split=train, model~qwen"
    ),
    click.option("--min-turns", type=click.IntRange(min=0), help="Model calls."),
    click.option("--max-turns", type=click.IntRange(min=0)),
    click.option("--max-chars", type=click.IntRange(min=1), help="Of the whole conversation."),
    click.option("--min-tool-success", type=_SHARE, help="Share of tool calls that worked, 0 to 1."),
    click.option("--language", multiple=True, metavar="CODE", help="en, de, zh …; repeatable."),
    click.option("--near-duplicates", type=_SHARE, metavar="SIM", help="Drop those as alike as this (0.85)."),
    click.option("--decontaminate", type=_FILE, help="Drop those that contain text of this eval set."),
    click.option(
        "--redact",
        type=click.Choice(["none", "known", "names", "shapes"]),
        default="shapes",
        show_default=True,
        help="Known secrets; also by the names they have; also by their shape.",
    ),
    click.option("--split", type=_SHARE, metavar="SHARE", help="Share of tasks for eval; two files."),
    click.option(
        "--pairs-from",
        multiple=True,
        type=click.Choice(["choice", "rating", "reward", "retry"]),
        help="Preference formats: whose word counts, first one first; all if none is named.",
    ),
    click.option("--min-margin", type=float, default=0.0, help="Least difference of ratings or rewards."),
    click.option("--recipe", metavar="NAME", help="axolotl, unsloth, trl or llama-factory: also its config."),
    click.option("--base-model", metavar="NAME", help="Model that the recipe trains."),
    click.option("--lora", is_flag=True, help="Recipe: LoRA without four-bit quantisation."),
    click.option("--push-to-hub", "repo", metavar="REPO", help="Also upload, if no secret is found in it."),
    click.option("--public", is_flag=True, help="The repository may be seen by everybody."),
    click.option("--preview", is_flag=True, help="Print the first rows, write nothing."),
)


def export_options(command: Callable[..., Any]) -> Callable[..., Any]:
    command = filter_options(command)
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def choose_format(form: str | None, roles: str, recipe: TrainerRecipe | None) -> Format:
    """The format asked for; else the recipe's own; else ShareGPT."""
    from hermes.data.formats.registry import get_format
    from hermes.data.recipes.base import check_format

    name = form or (recipe.formats[0] if recipe else "sharegpt")
    if name == "sharegpt" and roles == "user-assistant":
        name = "sharegpt-user-assistant"
    chosen = get_format(name)
    if recipe is not None:
        check_format(recipe, name)
    return chosen


def build_plan(form: Format, given: dict[str, Any]) -> ExportPlan:
    """`given`: the command's options by name."""
    from hermes.data.export.run import ExportPlan
    from hermes.data.formats.base import ToolCallStyle
    from hermes.data.preference.pairs import PreferenceSource
    from hermes.data.redaction.redact import RedactionLevel

    output = given["output"] or (Path("preview.jsonl") if given["preview"] else None)
    if output is None:
        raise UsageError("where to?", "--output data.jsonl, or --preview to look first")
    return ExportPlan(
        form,
        output,
        _selection(given),
        ToolCallStyle(given["calls"]),
        RedactionLevel(given["redact"]),
        given["split"],
        tuple(PreferenceSource(name) for name in given["pairs_from"]) or tuple(PreferenceSource),
        given["min_margin"],
    )


def _selection(given: dict[str, Any]) -> TrajectorySelection:
    from hermes.data.export.select import TrajectorySelection
    from hermes.data.where import parse

    return TrajectorySelection(
        build_filter(**given["filters"]),
        tuple(parse(text) for text in given["where"]),
        tuple(_rules(given)),
        not given["everything"],
        given["compressed"],
    )


def _rules(given: dict[str, Any]) -> list[Rule]:
    """Cheap ones first, and near-duplicates last: what another rule removes must not shadow what stays."""
    from hermes.data.curate.contamination import Contamination, read_eval_set
    from hermes.data.curate.duplicates import NearDuplicates
    from hermes.data.curate.language import Language
    from hermes.data.curate.quality import Length, ToolSuccess

    rules: list[Rule] = []
    bounds = (given["min_turns"], given["max_turns"], given["max_chars"])
    if any(bound is not None for bound in bounds):
        rules.append(Length(*bounds))
    if given["min_tool_success"] is not None:
        rules.append(ToolSuccess(given["min_tool_success"]))
    if given["language"]:
        rules.append(Language(given["language"]))
    if given["decontaminate"] is not None:
        rules.append(Contamination(read_eval_set(given["decontaminate"])))
    if given["near_duplicates"] is not None:
        rules.append(NearDuplicates(given["near_duplicates"]))
    return rules
