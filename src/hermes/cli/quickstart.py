"""`hermes quickstart`: the whole loop, with real training, on the bundled model."""

from __future__ import annotations

from pathlib import Path

import click

from hermes.cli.options import DeviceChoice, RenamedOption, json_option


@click.command()
@click.argument("act", required=False, type=click.Choice(["feedback"]))
@click.option("--fast", is_flag=True, help="Run every stage briefly, as a test; too little to learn.")
@click.option(
    "--full", is_flag=True, help="All steps and rollouts even on a slow CPU, which gets fewer by default."
)
@click.option(
    "--device",
    type=DeviceChoice(),
    default="cpu",
    show_default=True,
    help="cuda runs a larger version; auto uses it if available.",
)
@click.option(
    "--replicas",
    "--engine-replicas",
    "engine_replicas",
    cls=RenamedOption,
    default=1,
    show_default=True,
    type=click.IntRange(1, 64),
    help="Worker processes of the engine, each with a copy of the model.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("data"),
    show_default=True,
    help="Parent of the quickstart's folder.",
)
@json_option
def quickstart(
    act: str | None, fast: bool, full: bool, device: str, engine_replicas: int, output: Path, as_json: bool
) -> None:
    """Generate, evaluate, warm up, reinforce, evaluate again. Two CPU cores, no key, no network.

    It measures the machine first and estimates the duration; a slow CPU gets fewer steps and rollouts.
    Ends with a table, a picture of the reward curve and what to try next. Progress goes to standard error
    with --json.

    `hermes quickstart feedback` is the second act: the model answers, a stated rule rates as a person would
    (short, polite answers with the figure first), then DPO, a reward model and RLHF.
    """
    import json

    from hermes.cli.terminal.progress import ProgressLines
    from hermes.errors import UsageError
    from hermes.quickstart import report
    from hermes.quickstart.act import ActOptions
    from hermes.quickstart.machine import choose_device
    from hermes.quickstart.recipe import choose
    from hermes.quickstart.stages import run

    torch_device = choose_device(device, lambda line: click.echo(f"({line})", err=True))
    if fast and full:
        raise UsageError("--fast and --full exclude each other", "leave one of them out")
    if act == "feedback":
        _feedback(torch_device, fast, full, engine_replicas, output, as_json)
        return
    options = ActOptions(
        choose(fast=fast, cuda=torch_device == "cuda", full=full), torch_device, output, engine_replicas
    )
    with ProgressLines(to_stderr=as_json) as progress:
        progress.wait_for("starting")
        outcome = run(options, progress)
    files = report.write(outcome)
    if as_json:
        click.echo(json.dumps(outcome.to_json()))
    else:
        click.echo("\n" + report.text(outcome, files))


def _feedback(device: str, fast: bool, full: bool, engine_replicas: int, output: Path, as_json: bool) -> None:
    import json

    from hermes.cli.terminal.progress import ProgressLines
    from hermes.quickstart.act import ActOptions
    from hermes.quickstart.feedback import act
    from hermes.quickstart.feedback.recipe import choose

    recipes = choose(fast=fast, cuda=device == "cuda", full=full)
    options = ActOptions(recipes, device, output, engine_replicas)
    with ProgressLines(to_stderr=as_json) as progress:
        progress.wait_for("starting")
        outcome = act.run(options, progress)
    click.echo(json.dumps(outcome.to_json()) if as_json else f"\n{act.text(outcome)}")
