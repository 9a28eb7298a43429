"""Which model an engine runs and on what: the options of the commands that load one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

_OPTIONS = (
    click.option("--model", default="hermes/smollm2", show_default=True, help="Bundled, hub name or folder."),
    click.option(
        "--device",
        default="auto",
        show_default=True,
        help="auto, cpu or cuda (the first GPU that CUDA_VISIBLE_DEVICES shows).",
    ),
    click.option(
        "--dtype",
        default="auto",
        show_default=True,
        type=click.Choice(["auto", "float32", "bfloat16"]),
        help="Of the base model; adapters and optimizer are float32.",
    ),
)


def model_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds them; the command receives `model`, `device` and `dtype`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def find_model(name: str) -> tuple[str, tuple[str, ...]]:
    """Where the weights are, and what clients may call them."""
    from hermes.config.paths import home
    from hermes.errors import UsageError
    from hermes.models.local import bundled

    if name == f"hermes/{bundled.NAME}":
        folder = str(bundled.prepare(home(), lambda line: click.echo(line, err=True)))
        return folder, (name, folder)
    if Path(name).is_dir():
        folder = str(Path(name).absolute())
        return folder, (folder,)
    if name.startswith(("/", ".", "~")):
        raise UsageError(f"there is no folder '{name}'", "give a folder with a model, or a hub name")
    return name, (name,)
