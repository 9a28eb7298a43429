"""`hermes improve`: from ratings to a tested policy, in one command; once or whenever there are enough."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING

import click

from hermes.cli.model_options import model_options
from hermes.cli.options import DeviceChoice, json_option, stored_variables
from hermes.cli.policy.options import ImproveOptions
from hermes.cli.policy.text import improve_text
from hermes.policies.improve import improve, new_ratings
from hermes.policies.report import append_steps

if TYPE_CHECKING:
    from hermes.cli.terminal.progress import ProgressLines
    from hermes.config.load import Config
    from hermes.policies.improve import Agree, Improvement

_POLL_S = 3.0
_OLLAMA = (
    "ollama  hermes rl weights {run} --format gguf --output {run}.gguf && "
    "echo 'FROM ./{run}.gguf' > Modelfile && ollama create {run} && hermes --model ollama/{run}"
)


@click.command("improve")
@model_options(ImproveOptions)
@json_option
@stored_variables
def improve_policy(options: ImproveOptions, as_json: bool) -> None:
    """Learn from the ratings since the last time, compare with the current policy, promote only if better.

    The decision is a sequential test on held-out ratings; a report says what was learned and what got worse.
    """
    device = DeviceChoice().convert(options.device, None, click.get_current_context())
    options = options.model_copy(update={"device": device})
    base = click.get_current_context().get_parameter_source("base_model")
    agree = _AgreeOnce(already=base is click.core.ParameterSource.COMMANDLINE)
    if options.watch and options.text is None:
        _watch(options, agree, as_json)
    else:
        _improve_once(options, agree, as_json)


class _AgreeOnce:
    """Asks whether one model is to learn from another's answers, unless the person named it or has agreed."""

    def __init__(self, *, already: bool) -> None:
        self._agreed = already

    def __call__(self, fact: str, base_model: str) -> None:
        from hermes.cli.question import confirm
        from hermes.errors import UsageError

        self._agreed = self._agreed or confirm(f"{fact}, which is another model. Train it?", err=True)
        if not self._agreed:
            raise UsageError(
                f"{fact}, which is another model",
                f"--base-model {base_model} if that is meant, or --base-model with the one that answered "
                "(a hub name or a folder)",
            )


def _improve_once(options: ImproveOptions, agree: Agree, as_json: bool) -> Improvement:
    from hermes.cli.terminal.progress import ProgressLines
    from hermes.config.load import load
    from hermes.errors import UsageError

    config = load()
    raters = [name for name in (options.reward, options.judge, options.reward_model) if name]
    if len(raters) > 1:
        raise UsageError("one rater of held-out answers is enough", "--reward, --judge or --reward-model")
    if options.agent is not None and options.text is None:
        raise UsageError("--agent runs a program whose files are improved", "add --text file:AGENTS.md")
    if options.then is not None and options.text is None:
        raise UsageError(
            "--then follows an improvement of texts", "add --text, or --method for weights alone"
        )
    if options.agent is None and options.reward and ":" not in options.reward:
        raise UsageError(
            f"--reward {options.reward}: stored rewards cannot score new answers", "FILE.py:FUNCTION"
        )
    with ProgressLines(to_stderr=as_json) as progress:
        steps = []
        if options.text is not None:
            steps.append(improve_text(options, progress))
        if options.text is None or options.then is not None:
            weights = _weights_options(options)
            steps.append(_improve_weights(config, weights, progress, agree, rated=bool(raters)))
    result = steps[-1]
    if len(steps) > 1:
        append_steps(result.report, [step.record for step in steps])
    if as_json:
        record = result.record
        facts = {"policy": record.id, "promoted": result.promoted, "decision": record.decision}
        before = {"texts": {"policy": steps[0].record.id, "promoted": steps[0].promoted}} if steps[1:] else {}
        click.echo(json.dumps({**facts, **before, "figures": record.facts, "report": str(result.report)}))
    else:
        for step in steps:
            click.echo(step.sentence)
        click.echo(f"report  {result.report}")
        if result.promoted:
            click.echo("talk    hermes --model policy")
            if any(model.startswith("ollama/") for model in result.models):
                run = result.record.run_id
                click.echo(_OLLAMA.format(run=run))
    return result


def _weights_options(options: ImproveOptions) -> ImproveOptions:
    return options if options.then is None else options.model_copy(update={"method": options.then})


def _improve_weights(
    config: Config, options: ImproveOptions, progress: ProgressLines, agree: Agree, *, rated: bool
) -> Improvement:
    from hermes.cli.rating.auto import open_rater
    from hermes.config.paths import db_path
    from hermes.store import Reader

    with Reader(db_path(config.home)) as reader:
        progress.wait_for("reading the ratings")
        rater, model = open_rater(config, options.model_dump(), reader) if rated else (None, None)
        try:
            return improve(config, options, rater, progress, agree)
        finally:
            if model is not None:
                asyncio.run(model.close())


def _watch(options: ImproveOptions, agree: Agree, as_json: bool) -> None:
    """Improves until Ctrl-C. A run that has too little to learn from waits for more."""
    from hermes.config.load import load
    from hermes.errors import UsageError

    config, needed, printed = load(), options.min_new, -1
    while True:
        count = new_ratings(config)
        if count >= needed:
            try:
                _improve_once(options, agree, as_json)
            except UsageError as error:
                click.echo(f"{error.message}: {error.hint}", err=as_json)
                needed = count + options.min_new
            else:
                needed = options.min_new
        elif count != printed:
            line = f"{count} of {needed} new ratings; waiting for more (Ctrl-C ends)"
            click.echo(line, err=as_json)
            printed = count
        time.sleep(_POLL_S)
