"""Runs `hermes improve`, once or whenever there are enough new ratings."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import click

from hermes.cli.rating.auto import open_rater
from hermes.cli.terminal.progress import ProgressLines
from hermes.config.load import load
from hermes.config.paths import db_path
from hermes.errors import UsageError
from hermes.policies.improve import Improvement, ImproveSettings, improve, new_ratings
from hermes.policies.rows import Method
from hermes.store import Reader

_POLL_S = 3.0


def run_improve(params: Mapping[str, Any]) -> Improvement:
    config = load()
    raters = [name for name in ("reward", "judge", "reward_model") if params[name]]
    if len(raters) > 1:
        raise UsageError("one rater of held-out answers is enough", "--reward, --judge or --reward-model")
    if params["reward"] and ":" not in params["reward"]:
        raise UsageError(
            f"--reward {params['reward']}: stored rewards cannot score new answers", "FILE.py:FUNCTION"
        )
    values = {item.name: params[item.name] for item in fields(ImproveSettings)}
    values["method"] = Method(params["method"]) if params["method"] else None
    with Reader(db_path(config.home)) as reader, ProgressLines(to_stderr=params["as_json"]) as progress:
        progress.wait_for("reading the ratings")
        rater, model = open_rater(config, params, reader) if raters else (None, None)
        try:
            result = improve(config, ImproveSettings(**values), rater, progress)
        finally:
            if model is not None:
                asyncio.run(model.close())
    if params["as_json"]:
        record = result.record
        facts = {"policy": record.id, "promoted": result.promoted, "decision": record.decision}
        click.echo(json.dumps({**facts, "figures": record.facts, "report": str(result.report)}))
    else:
        click.echo(result.sentence)
        click.echo(f"report  {result.report}")
    return result


def watch(params: Mapping[str, Any]) -> None:
    """Until Ctrl-C. A run that has too little to learn from waits for more."""
    config, needed, printed = load(), params["min_new"], -1
    while True:
        count = new_ratings(config)
        if count >= needed:
            try:
                run_improve(params)
            except UsageError as error:
                click.echo(error.message, err=params["as_json"])
                needed = count + params["min_new"]
            else:
                needed = params["min_new"]
        elif count != printed:
            line = f"{count} of {needed} new ratings; waiting for more (Ctrl-C ends)"
            click.echo(line, err=params["as_json"])
            printed = count
        time.sleep(_POLL_S)
