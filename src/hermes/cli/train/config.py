"""Where `hermes train grpo` gets its settings: the flags, and under them the reference's YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
from click.core import ParameterSource

from hermes.config.settings import MANAGED


def merge_run_file(ctx: click.Context, given: dict[str, Any]) -> dict[str, Any]:
    """The options with the values of --config, where the command line does not name them itself."""
    path: Path | None = given["config_file"]
    if path is None:
        return _with_place(given, None)
    from hermes.rl.config.run_file import TRAIN_OPTIONS, read_run_file

    file = read_run_file(path)
    options = {option: file.values.get(field) for field, option in TRAIN_OPTIONS.items()}
    stale = file.values.get("env.max_batches_offpolicy")
    options["max_staleness"] = None if stale is None else stale + 1
    options["no_wandb"] = file.values.get("env.use_wandb") is False or None
    options["wandb_group"] = file.wandb_group
    options["extra_sinks"] = file.values.get("tinker.sinks")
    if (options["batch_size"] or 0) < 1:
        options["batch_size"] = None  # -1 in an environment's settings: the trainer's own
    merged = dict(given)
    by_name = {parameter.name: parameter for parameter in ctx.command.params}
    for name, value in options.items():
        parameter = by_name.get(name)
        if value in (None, "") or parameter is None:
            continue
        if ctx.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            merged[name] = parameter.type_cast_value(ctx, value)
    return _with_place(merged, file.values.get("openai.base_url"))


def _with_place(given: dict[str, Any], sampled_at: str | None) -> dict[str, Any]:
    """With --with-engine: the managed service and an OpenAI port here, or an engine on loopback."""
    if not given["with_engine"] or given["base_url"]:
        return given
    from hermes.config.load import load
    from hermes.training.service.client import KEY_VARIABLE, LOCAL_URL, URL_VARIABLE

    environ = load().environ
    if environ.get(URL_VARIABLE):
        return given
    port = urlsplit(sampled_at or LOCAL_URL).port or urlsplit(LOCAL_URL).port
    if environ.get(KEY_VARIABLE):
        offered_at = port if given["face_port"] is None else given["face_port"]
        return {**given, "base_url": MANAGED, "face_port": offered_at}
    return {**given, "base_url": f"http://127.0.0.1:{port}"}
