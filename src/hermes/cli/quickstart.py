"""`hermes quickstart`: real training on the bundled model, in a few minutes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from hermes.cli.options import DeviceChoice, RenamedOption, json_option

_HERE = "'hermes web', then http://127.0.0.1:8765"


@click.command()
@click.argument("act", required=False, type=click.Choice(["feedback"]))
@click.option("--fast", is_flag=True, help="Run every stage briefly, as a test; too little to learn.")
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
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Which sums are drawn.")
@click.option("--web", is_flag=True, help="Open the run's page in a browser, and serve it until Ctrl-C.")
@json_option
def quickstart(
    act: str | None,
    fast: bool,
    device: str,
    engine_replicas: int,
    output: Path,
    seed: int,
    web: bool,
    as_json: bool,
) -> None:
    """Watch a model learn to use a tool, in about five minutes on two CPU cores. No key, no network.

    The bundled model tries sums with examples before it; the right ones warm it up; then a run of `hermes rl`
    improves it by reward alone. It ends with its success on held-out sums, the curve of the reward, and two
    things to do next. Progress goes to standard error with --json.

    `hermes quickstart feedback` is the second part: the model answers, a stated rule rates as a person would
    (short, polite answers with the figure first), and DPO learns from the ratings.
    """
    import json
    import threading
    import webbrowser

    from hermes.cli.terminal.progress import ProgressLines
    from hermes.quickstart import report, stages
    from hermes.quickstart.act import ActOptions, choose_device
    from hermes.quickstart.recipe import choose

    torch_device = choose_device(device, lambda line: click.echo(f"({line})", err=True))
    if act == "feedback":
        _feedback(torch_device, fast, engine_replicas, output, as_json)
        return
    recipe = choose(fast=fast, cuda=torch_device == "cuda")
    options = ActOptions(recipe, torch_device, output, engine_replicas)
    with _web_app(web) as address, ProgressLines(to_stderr=as_json) as progress:

        def show(page: str) -> None:
            progress(f"   watch it in the browser: {address or _HERE}{page}")
            if address:
                webbrowser.open(f"{address}{page}")

        progress.wait_for("starting")
        outcome = stages.run(options, progress, seed=seed, show=show)
        report.write(outcome)
        click.echo(json.dumps(outcome.to_json()) if as_json else f"\n{report.text(outcome)}")
        if address:
            progress(f"hermes web on {address} (Ctrl-C ends it)")
            threading.Event().wait()


@contextmanager
def _web_app(enabled: bool) -> Iterator[str | None]:
    """The address of the web app, which this process serves meanwhile; None if it is not wanted."""
    if not enabled:
        yield None
        return
    from hermes.config.load import load
    from hermes.rl.supervise import ports
    from hermes.web.server import PORT, WebOptions, serve_in_background

    with serve_in_background(load(), WebOptions(port=ports.choose(PORT))) as address:
        yield address


def _feedback(device: str, fast: bool, engine_replicas: int, output: Path, as_json: bool) -> None:
    import json

    from hermes.cli.terminal.progress import ProgressLines
    from hermes.quickstart.act import ActOptions
    from hermes.quickstart.feedback import act
    from hermes.quickstart.feedback.recipe import choose

    recipe = choose(fast=fast, cuda=device == "cuda")
    options = ActOptions(recipe, device, output, engine_replicas)
    with ProgressLines(to_stderr=as_json) as progress:
        progress.wait_for("starting")
        outcome = act.run(options, progress)
    click.echo(json.dumps(outcome.to_json()) if as_json else f"\n{act.text(outcome)}")
