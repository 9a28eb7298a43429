"""`hermes export`: trajectories as training data."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes.cli.options import (
    FilterOptions,
    add_options,
    filter_options,
    json_option,
    make_options,
    stored_variables,
)
from hermes.errors import UsageError

if TYPE_CHECKING:
    from hermes.config.load import Config
    from hermes.data.curate.base import Rule
    from hermes.data.export.run import ExportPlan, ExportReport
    from hermes.data.export.select import TrajectorySelection
    from hermes.data.formats.base import Format
    from hermes.data.recipes import TrainerRecipe

_PREVIEW_ROWS = 3
_SHOWN_CHARS = 4_000
_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
_SHARE = click.FloatRange(0, 1)
_OPTIONS = (
    click.option("--format", "form", metavar="NAME", help="See --formats; default: sharegpt."),
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
    click.option(
        "--id",
        "ids",
        multiple=True,
        metavar="ID",
        help="Only this trajectory: an id, its beginning or end, or 'last'; repeatable.",
    ),
    click.option("--all", "everything", is_flag=True, help="Also trajectories that did not complete."),
    click.option(
        "--compressed", is_flag=True, help="Use the compressed version of a trajectory if it has one."
    ),
    click.option(
        "--where", multiple=True, metavar="COND", help="turns<=10, metadata.split=train, model~qwen"
    ),
    click.option("--min-turns", type=click.IntRange(min=0), help="Model calls."),
    click.option("--max-turns", type=click.IntRange(min=0), help="Most model calls of a conversation."),
    click.option("--max-chars", type=click.IntRange(min=1), help="Longest conversation, in characters."),
    click.option("--min-tool-success", type=_SHARE, help="Share of tool calls that worked, 0 to 1."),
    click.option("--language", multiple=True, metavar="CODE", help="en, de, zh …; repeatable."),
    click.option(
        "--near-duplicates",
        type=_SHARE,
        metavar="SIM",
        help="Drop trajectories at least this similar (0.85).",
    ),
    click.option("--decontaminate", type=_FILE, help="Drop trajectories that contain text of this eval set."),
    click.option(
        "--redact",
        type=click.Choice(["none", "known", "names", "shapes"]),
        default="shapes",
        show_default=True,
        help="Known secrets; also values named like one; also values shaped like one.",
    ),
    click.option("--split", type=_SHARE, metavar="SHARE", help="Share of tasks for eval; two files."),
    click.option(
        "--pairs-from",
        multiple=True,
        type=click.Choice(["choice", "rating", "reward", "retry"]),
        help="Preference formats: which signals to build pairs from, in order of preference; default: all.",
    ),
    click.option("--min-margin", type=float, default=0.0, help="Least difference of ratings or rewards."),
    click.option("--recipe", metavar="NAME", help="axolotl, unsloth, trl or llama-factory: also its config."),
    click.option("--base-model", metavar="NAME", help="Model that the recipe trains."),
    click.option("--lora", is_flag=True, help="Recipe: LoRA without four-bit quantisation."),
    click.option(
        "--push-to-hub",
        "repo",
        metavar="REPO",
        help="Also upload the export, unless a secret is found in it.",
    ),
    click.option("--public", is_flag=True, help="Make the repository public."),
    click.option("--preview", is_flag=True, help="Print the first rows, write nothing."),
    click.option("--delete", is_flag=True, help="Delete the export that --output names, with its manifest."),
    click.option("--yes", is_flag=True, help="Do not ask before --delete."),
)


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Fields are named like the parameters of the command; `hermes export --help` documents them."""

    filters: FilterOptions
    form: str | None
    output: Path | None
    roles: str
    calls: str
    ids: tuple[str, ...]
    everything: bool
    compressed: bool
    where: tuple[str, ...]
    min_turns: int | None
    max_turns: int | None
    max_chars: int | None
    min_tool_success: float | None
    language: tuple[str, ...]
    near_duplicates: float | None
    decontaminate: Path | None
    redact: str
    split: float | None
    pairs_from: tuple[str, ...]
    min_margin: float
    recipe: str | None
    base_model: str | None
    lora: bool
    repo: str | None
    public: bool
    preview: bool
    as_json: bool


@click.command()
@add_options(*_OPTIONS)
@filter_options
@json_option
@stored_variables
def export(listing: bool, delete: bool, yes: bool, **params: Any) -> None:
    """Write trajectories as training data.

    Only completed ones, unless --all. Rows that are left out are counted with the reason and listed beside
    the data, with a manifest: counts, filters, what was redacted, hashes.
    """
    from hermes.config.load import load
    from hermes.data.export.log import log_export
    from hermes.data.recipes import get_recipe

    if listing:
        _list_formats(params["as_json"])
        return
    if delete:
        _delete(params["output"], yes, params["as_json"])
        return
    options = make_options(ExportOptions, {**params, "filters": make_options(FilterOptions, params)})
    recipe = get_recipe(options.recipe) if options.recipe else None
    config = load()
    plan = _build_plan(_choose_format(options, recipe), options, config)
    if options.preview:
        _print_preview(config, plan, options.as_json)
        return
    report = _export(config, plan)
    log_export(config.home, report.files)
    configs = _write_recipe(recipe, plan, report, options) if recipe else []
    url = _push(config, plan, report, configs, options)
    if options.as_json:
        facts = {
            "output": str(plan.output),
            "format": plan.form.name,
            "rows": report.rows,
            "left_out": dict(report.left_out),
            "files": [str(path) for path in (*report.files, *configs)],
            "manifest": report.facts,
        }
        click.echo(json.dumps(facts | ({"url": url} if url else {})))
        return
    _print_report(plan, report)
    if recipe and configs:
        click.echo(f"recipe: {recipe.command(str(configs[0]))}")
    if url:
        click.echo(f"pushed to {url}")


def _delete(output: Path | None, yes: bool, as_json: bool) -> None:
    from hermes.cli import question
    from hermes.data.export.manifest import delete_export, path_for, read

    if output is None:
        raise UsageError("--output is missing", "name the file that the export wrote")
    if not as_json:
        click.echo(f"{output}: {read(path_for(output))['rows']} rows; copies and uploads of it stay")
    question.confirm_deletion(f"the export {output}", yes=yes)
    deleted = [str(path) for path in delete_export(output)]
    click.echo(json.dumps({"deleted": deleted}) if as_json else f"deleted: {', '.join(deleted)}")


def _choose_format(options: ExportOptions, recipe: TrainerRecipe | None) -> Format:
    """The format of --format; without it the recipe's first, or ShareGPT."""
    from hermes.data.formats.registry import get_format
    from hermes.data.recipes import check_format

    name = options.form or (recipe.formats[0] if recipe else "sharegpt")
    if name == "sharegpt" and options.roles == "user-assistant":
        name = "sharegpt-user-assistant"
    form = get_format(name)
    if recipe is not None:
        check_format(recipe, name)
    return form


def _build_plan(form: Format, options: ExportOptions, config: Config) -> ExportPlan:
    from hermes.data.export.run import ExportPlan
    from hermes.data.formats.base import ToolCallStyle
    from hermes.data.preference.pairs import PreferenceSource
    from hermes.data.redaction.redact import RedactionLevel

    output = options.output or (Path("preview.jsonl") if options.preview else None)
    if output is None:
        raise UsageError("--output is missing", "--output data.jsonl, or --preview to look first")
    return ExportPlan(
        form,
        output,
        _selection(options, config),
        ToolCallStyle(options.calls),
        RedactionLevel(options.redact),
        options.split,
        tuple(PreferenceSource(name) for name in options.pairs_from) or tuple(PreferenceSource),
        options.min_margin,
    )


def _selection(options: ExportOptions, config: Config) -> TrajectorySelection:
    from hermes.config.paths import db_path
    from hermes.data.export.select import TrajectorySelection
    from hermes.data.where import parse
    from hermes.store import Reader

    filters = options.filters.build()
    if options.ids:
        with Reader(db_path(config.home)) as reader:
            filters = replace(filters, ids=tuple(dict.fromkeys(map(reader.resolve, options.ids))))
    return TrajectorySelection(
        filters,
        tuple(parse(text) for text in options.where),
        tuple(_rules(options)),
        not options.everything,
        options.compressed,
    )


def _rules(options: ExportOptions) -> list[Rule]:
    """Cheap rules first, near-duplicates last: a row that another rule removes hides none that stays."""
    from hermes.data.curate.base import (
        Contamination,
        Language,
        Length,
        NearDuplicates,
        ToolSuccess,
        read_eval_set,
    )

    rules: list[Rule] = []
    bounds = (options.min_turns, options.max_turns, options.max_chars)
    if any(bound is not None for bound in bounds):
        rules.append(Length(*bounds))
    if options.min_tool_success is not None:
        rules.append(ToolSuccess(options.min_tool_success))
    if options.language:
        rules.append(Language(options.language))
    if options.decontaminate is not None:
        rules.append(Contamination(read_eval_set(options.decontaminate)))
    if options.near_duplicates is not None:
        rules.append(NearDuplicates(options.near_duplicates))
    return rules


def _export(config: Config, plan: ExportPlan) -> ExportReport:
    from hermes.cli.terminal.waiting import waiting
    from hermes.config.paths import db_path
    from hermes.data.export.run import export as run
    from hermes.safety.redact import Redactor
    from hermes.store import Reader

    with Reader(db_path(config.home)) as reader, waiting(f"writing {plan.output.name}"):
        return run(reader, plan, Redactor(config.secrets))


def _write_recipe(
    recipe: TrainerRecipe, plan: ExportPlan, report: ExportReport, options: ExportOptions
) -> list[Path]:
    from hermes.data.recipes import BASE_MODEL, Ask, write_recipe

    files = [str(plan.output.with_name(file["name"])) for file in report.facts["files"]]
    request = Ask(
        files[0],
        files[1] if len(files) > 1 else None,
        plan.form.name,
        options.base_model or BASE_MODEL,
        quantised=not options.lora,
    )
    return write_recipe(recipe, request, plan.output)


def _push(
    config: Config, plan: ExportPlan, report: ExportReport, configs: list[Path], options: ExportOptions
) -> str | None:
    if not options.repo:
        return None
    from hermes.cli.terminal.waiting import waiting
    from hermes.data.export.manifest import removed_path_for
    from hermes.data.export.push import push
    from hermes.safety.redact import Redactor

    private_list = removed_path_for(plan.output)  # it names rows that were left out
    files = [path for path in (*report.files, *configs) if path != private_list]
    with waiting(f"sending it to {options.repo}"):
        return push(
            options.repo,
            files,
            report.facts,
            plan.form,
            redactor=Redactor(config.secrets),
            private=not options.public,
            token=config.environ.get("HF_TOKEN"),
            endpoint=config.environ.get("HF_ENDPOINT"),
        )


def _list_formats(as_json: bool) -> None:
    from hermes.cli.tables import columns
    from hermes.data.formats.registry import FORMATS

    if as_json:
        formats = [
            {"name": f.name, "version": f.version, "summary": f.summary, "keeps": f.keeps, "loses": f.loses}
            for f in FORMATS.values()
        ]
        click.echo(json.dumps(formats))
        return
    rows = [(f.name, "both" if f.read else "export", f.summary) for f in FORMATS.values()]
    click.echo(columns([("format", "import", "rows"), *rows]))


def _print_preview(config: Config, plan: ExportPlan, as_json: bool) -> None:
    from hermes.config.paths import db_path
    from hermes.data.export.run import preview
    from hermes.safety.redact import Redactor
    from hermes.safety.text import clip, printable
    from hermes.store import Reader

    with Reader(db_path(config.home)) as reader:
        rows, left_out = preview(reader, plan, _PREVIEW_ROWS, Redactor(config.secrets))
    if as_json:
        click.echo(json.dumps({"format": plan.form.name, "rows": rows, "left_out": dict(left_out)}))
        return
    for row in rows:
        click.echo(clip(printable(json.dumps(row, indent=2, ensure_ascii=False)), _SHOWN_CHARS))
    click.echo(f"the first {len(rows)} rows as {plan.form.name}; nothing was written")
    for reason, count in sorted(left_out.items()):
        click.echo(f"  left out so far: {count} ({printable(reason)})")


def _print_report(plan: ExportPlan, report: ExportReport) -> None:
    from hermes.safety.text import printable

    for file in report.facts["files"]:
        click.echo(f"{file['rows']} rows written to {plan.output.with_name(file['name'])}")
    if report.groups is not None:
        click.echo(f"  split: {report.groups}")
    for reason, count in sorted(report.left_out.items()):
        click.echo(f"  left out: {count} ({printable(reason)})")
    for rule, count in report.facts["redaction"]["hits"].items():
        click.echo(f"  redacted: {count} ({rule})")
