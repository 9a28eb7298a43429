"""`hermes export`: trajectories as training data."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from hermes.cli.filters import FilterOptions
from hermes.cli.model_options import model_options
from hermes.cli.options import json_option, stored_variables
from hermes.config.option import option
from hermes.core.names import counted
from hermes.data.formats.base import Thinking, ToolCallStyle
from hermes.data.preference.pairs import PreferenceSource
from hermes.data.redaction.redact import RedactionLevel
from hermes.errors import UsageError
from hermes.training.options import PairFields, RatingFields

if TYPE_CHECKING:
    from hermes.config.load import Config
    from hermes.data.curate.base import Rule
    from hermes.data.export.run import ExportPlan, ExportReport
    from hermes.data.export.select import TrajectorySelection
    from hermes.data.formats.base import Format
    from hermes.data.recipes import TrainerRecipe

_PREVIEW_ROWS = 3
_SHOWN_CHARS = 4_000


class ExportOptions(RatingFields, PairFields):
    ids: tuple[str, ...] = option(
        (),
        "Only these trajectories: ids, their beginnings or ends, or 'last'.",
        metavar="[ID]...",
        argument=True,
    )
    form: str | None = option(
        None, "sharegpt if unset; list: print the formats and stop.", "--format", metavar="NAME|list"
    )
    listing: bool = option(False, "The same as --format list.", "--formats", hidden=True)
    output: Path | None = option(None, "File to write: .jsonl, .parquet or .arrow; for sts also a folder.")
    roles: Literal["human-gpt", "user-assistant"] = option(
        "human-gpt", "ShareGPT: the role names your trainer expects."
    )
    calls: ToolCallStyle = option(
        ToolCallStyle.STRUCTURED,
        "trl and axolotl formats: tool calls as fields, or as text for templates without tools.",
    )
    thinking: Thinking = option(
        Thinking.SEEN,
        "Training formats: earlier thinking as the model was shown it, which can make several rows of a "
        "trajectory; all of it; or none.",
    )
    named_ids: tuple[str, ...] = option((), "The same as the arguments.", "--id", hidden=True)
    everything: bool = option(False, "Also trajectories that did not complete.", "--all")
    compressed: bool = option(False, "Use the compressed version of a trajectory if it has one.")
    where: tuple[str, ...] = option((), "turns<=10, metadata.split=train, model~qwen", metavar="COND")
    min_turns: int | None = option(None, "Model calls.", ge=0)
    max_turns: int | None = option(None, "Most model calls of a conversation.", ge=0)
    max_chars: int | None = option(None, "Longest conversation, in characters.", ge=1)
    min_tool_success: float | None = option(None, "Share of tool calls that worked, 0 to 1.", ge=0, le=1)
    language: tuple[str, ...] = option((), "en, de, zh …; repeatable.", metavar="CODE")
    near_duplicates: float | None = option(
        None, "Drop trajectories at least this similar (0.85).", metavar="SIM", ge=0, le=1
    )
    decontaminate: Path | None = option(
        None, "Drop trajectories that contain text of this eval set.", path="file"
    )
    redact: RedactionLevel = option(
        RedactionLevel.SHAPES, "Known secrets; also values named like one; also values shaped like one."
    )
    split: float | None = option(None, "Share of tasks for eval; two files.", metavar="SHARE", ge=0, le=1)
    recipe: str | None = option(
        None, "axolotl, unsloth, trl or llama-factory: also its config.", metavar="NAME"
    )
    base_model: str | None = option(None, "Model that the recipe trains.", metavar="NAME")
    lora: bool = option(False, "Recipe: LoRA without four-bit quantisation.")
    repo: str | None = option(
        None,
        "Also upload the export, unless a secret is found in it.",
        "--push-to-hub",
        metavar="REPO",
    )
    public: bool = option(False, "Make the repository public.")
    preview: bool = option(False, "Print the first rows, write nothing.", "--dry-run", former=("--preview",))
    delete: bool = option(False, "Delete the export that --output names, with its manifest.")
    yes: bool = option(False, "Do not ask before --delete.")


@click.command()
@model_options(ExportOptions, FilterOptions)
@json_option
@stored_variables
def export(options: ExportOptions, filters: FilterOptions, as_json: bool) -> None:
    """Write trajectories as training data.

    Only completed ones are written, unless --all. Rows left out are counted with the reason and listed beside
    the data, with a manifest: counts, filters, what was redacted, hashes.
    """
    from hermes.config.load import load
    from hermes.data.export.manifest import log_export
    from hermes.data.recipes import get_recipe

    if options.listing or options.form == "list":
        _list_formats(as_json)
        return
    if options.delete:
        _delete(options.output, options.yes, as_json)
        return
    recipe = get_recipe(options.recipe) if options.recipe else None
    config = load()
    plan = _build_plan(_choose_format(options, recipe), options, filters, config)
    if options.preview and options.repo:
        _print_push(config, plan, recipe, options, as_json)
        return
    if options.preview:
        _print_preview(config, plan, as_json)
        return
    report = _export(config, plan)
    log_export(config.home, report.files)
    configs = _write_recipe(recipe, plan, report, options) if recipe else []
    url = _push(config, plan, report, configs, options)
    if as_json:
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
        click.echo(f"recipe: {recipe.command(plan.form.name, configs[0])}")
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


def _build_plan(form: Format, options: ExportOptions, filters: FilterOptions, config: Config) -> ExportPlan:
    from hermes.data.export.run import ExportPlan

    output = options.output or (Path("preview.jsonl") if options.preview else None)
    if output is None:
        raise UsageError("--output is missing", "--output data.jsonl, or --preview to look first")
    return ExportPlan(
        form,
        output,
        _selection(options, filters, config),
        options.calls,
        options.redact,
        options.split,
        options.pairs_from or tuple(PreferenceSource),
        options.min_margin,
        options.thinking,
    )


def _selection(options: ExportOptions, filters: FilterOptions, config: Config) -> TrajectorySelection:
    from hermes.config.paths import db_path
    from hermes.data.export.select import TrajectorySelection
    from hermes.data.where import parse
    from hermes.store import Reader

    conditions = filters.build(refuse_unknown=True)
    if ids := (*options.ids, *options.named_ids):
        with Reader(db_path(config.home)) as reader:
            conditions = replace(conditions, ids=tuple(dict.fromkeys(map(reader.resolve, ids))))
    return TrajectorySelection(
        conditions,
        tuple(parse(text) for text in options.where),
        tuple(_rules(options)),
        not options.everything,
        options.compressed,
        options.machine_ratings,
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
    from hermes.data.export.push import push
    from hermes.safety.redact import Redactor

    if not report.rows:
        raise UsageError(f"not pushed: the export has no rows ({plan.output})", "widen the filter")
    files = _public_files(plan, report, configs)
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


def _public_files(plan: ExportPlan, report: ExportReport, configs: list[Path]) -> list[Path]:
    """The files that a push sends; the list of rows that were left out stays here."""
    from hermes.data.export.manifest import removed_path_for

    private_list = removed_path_for(plan.output)
    return [path for path in (*report.files, *configs) if path != private_list]


def _print_push(
    config: Config, plan: ExportPlan, recipe: TrainerRecipe | None, options: ExportOptions, as_json: bool
) -> None:
    """Exports to a temporary folder and describes the push; nothing is sent."""
    import tempfile

    from hermes.data.export.push import describe
    from hermes.safety.redact import Redactor

    assert options.repo is not None
    with tempfile.TemporaryDirectory() as folder:
        trial = replace(plan, output=Path(folder) / plan.output.name)
        report = _export(config, trial)
        configs = _write_recipe(recipe, trial, report, options) if recipe else []
        files = _public_files(trial, report, configs)
        push = describe(options.repo, files, report.facts, trial.form, Redactor(config.secrets))
    visibility = "public" if options.public else "private"
    if as_json:
        facts = {"repository": options.repo, "visibility": visibility, "rows": report.rows, **push.to_json()}
        click.echo(json.dumps(facts))
        return
    click.echo(f"{options.repo}, {visibility}: {report.rows} rows; nothing was written or sent")
    for name, size in push.sizes.items():
        click.echo(f"  {name}  {size:,} bytes")
    click.echo(f"secrets: {push.secrets or 'none found'}")
    click.echo("the card, README.md:\n\n" + push.card)


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
        click.echo(f"{counted(file['rows'], 'rows')} written to {plan.output.with_name(file['name'])}")
    if report.groups is not None:
        click.echo(f"  split: {report.groups}")
    for reason, count in sorted(report.left_out.items()):
        click.echo(f"  left out: {count} ({printable(reason)})")
    for rule, count in report.facts["redaction"]["hits"].items():
        click.echo(f"  redacted: {count} ({rule})")
