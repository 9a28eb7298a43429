"""`hermes export`: trajectories as training data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes.cli.data.export_options import FILTER_NAMES, build_plan, choose_format, export_options
from hermes.cli.data.export_text import list_formats, show_preview, tell
from hermes.cli.options import json_option, stored_variables

if TYPE_CHECKING:
    from hermes.config.load import Config
    from hermes.data.export.run import ExportPlan, ExportReport
    from hermes.data.recipes.base import TrainerRecipe


@click.command()
@export_options
@json_option
@stored_variables
def export(listing: bool, as_json: bool, **given: Any) -> None:
    """Write trajectories as training data.

    Only completed ones, unless --all. What is left out is counted with its reason and listed beside the
    data, with a manifest: counts, filters, what was redacted, hashes.
    """
    import json

    from hermes.config.load import load
    from hermes.data.recipes.registry import get_recipe

    if listing:
        list_formats(as_json)
        return
    given["filters"] = {name: given.pop(name) for name in FILTER_NAMES}
    recipe = get_recipe(given["recipe"]) if given["recipe"] else None
    form = choose_format(given["form"], given["roles"], recipe)
    plan = build_plan(form, given)
    config = load()
    if given["preview"]:
        show_preview(config, plan, as_json)
        return
    report = _export(config, plan)
    configs = _write_recipe(recipe, plan, report, given) if recipe else []
    url = _push(config, plan, report, configs, given) if given["repo"] else None
    if as_json:
        facts = {
            "output": str(plan.output),
            "format": form.name,
            "rows": report.rows,
            "left_out": dict(report.left_out),
            "files": [str(path) for path in (*report.files, *configs)],
            "manifest": report.facts,
        }
        click.echo(json.dumps(facts | ({"url": url} if url else {})))
        return
    tell(plan, report)
    if recipe and configs:
        click.echo(f"recipe: {recipe.command(str(configs[0]))}")
    if url:
        click.echo(f"pushed to {url}")


def _export(config: Config, plan: ExportPlan) -> ExportReport:
    from hermes.config.paths import db_path
    from hermes.data.export.run import export as run
    from hermes.safety.redact import Redactor
    from hermes.store import Reader

    with Reader(db_path(config.home)) as reader:
        return run(reader, plan, Redactor(config.secrets))


def _write_recipe(
    recipe: TrainerRecipe, plan: ExportPlan, report: ExportReport, given: dict[str, Any]
) -> list[Path]:
    from hermes.data.recipes.base import BASE_MODEL, Ask
    from hermes.data.recipes.registry import write_recipe

    files = [str(plan.output.with_name(file["name"])) for file in report.facts["files"]]
    ask = Ask(
        files[0],
        files[1] if len(files) > 1 else None,
        plan.form.name,
        given["base_model"] or BASE_MODEL,
        quantised=not given["lora"],
    )
    return write_recipe(recipe, ask, plan.output)


def _push(
    config: Config, plan: ExportPlan, report: ExportReport, configs: list[Path], given: dict[str, Any]
) -> str:
    from hermes.data.export.manifest import removed_path_for
    from hermes.data.export.push import push
    from hermes.safety.redact import Redactor

    listed = removed_path_for(plan.output)  # names what stayed out: nobody else's business
    files = [path for path in (*report.files, *configs) if path != listed]
    return push(
        given["repo"],
        files,
        report.facts,
        plan.form,
        redactor=Redactor(config.secrets),
        private=not given["public"],
        token=config.environ.get("HF_TOKEN"),
        endpoint=config.environ.get("HF_ENDPOINT"),
    )
