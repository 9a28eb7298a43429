"""`hermes engine bench`: how fast the engine generates and trains here, against transformers alone."""

from __future__ import annotations

from typing import Any

import click

from hermes.cli.engine.model import find_model, model_options
from hermes.cli.options import json_option, stored_variables


@click.command()
@model_options
@click.option("--baseline/--no-baseline", default=True, help="Measure transformers and PEFT as well.")
@json_option
@stored_variables
def bench(model: str, device: str, dtype: str, baseline: bool, as_json: bool) -> None:
    """Measure generation and training on this machine.

    Both sides do the same work in one run. The workload is smaller without a GPU; --json says what it was.
    """
    import importlib.util
    import json

    from hermes.errors import MissingDependencyError

    for package in ("torch", "transformers", "safetensors"):
        if importlib.util.find_spec(package) is None:
            raise MissingDependencyError(package, "train", "the engine's benchmark")
    from hermes.models.local.torch_threads import import_torch

    import_torch()  # as the server does
    from hermes.engine.bench.run import bench as measure
    from hermes.engine.info import EngineOptions

    folder, _ = find_model(model)
    report = measure(EngineOptions(folder, device=device, dtype=dtype), baseline=baseline)
    click.echo(json.dumps(report, indent=2) if as_json else _text(report))


def _text(report: dict[str, Any]) -> str:
    from hermes.cli.tables import aligned

    theirs = {figure["what"]: figure for figure in report["transformers"]}
    padded = theirs.get("train, padded")
    rows = [("", "ENGINE PER S", "TRANSFORMERS PER S", "TIMES", "PEAK GIB", "THEIR PEAK")]
    for ours in report["engine"]:
        other = theirs.get(ours["what"]) or (padded if ours["what"].startswith("train") else None)
        rows.append(
            (
                ours["what"],
                _rate(ours["per_s"]),
                _rate(other["per_s"]) if other else "",
                f"{ours['per_s'] / other['per_s']:.1f}" if other else "",
                f"{ours['peak_gib']:.1f}" if ours["peak_gib"] else "",
                f"{other['peak_gib']:.1f}" if other and other["peak_gib"] else "",
            )
        )
    title = f"{report['model']} in {report['dtype']} on {report['device']}, torch {report['torch']}"
    notes = [f"Peak GiB: {report['peak_gib_is']}."]
    if report["left_out"]:
        notes.append(f"Left out: {report['left_out']}")
    return "\n".join([title, *aligned(rows), *notes])


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.2f}"
