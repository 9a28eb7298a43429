"""`hermes engine`: the local training and sampling server."""

from __future__ import annotations

from pathlib import Path

import click

from hermes.cli.engine.bench import bench
from hermes.cli.engine.import_adapter import import_
from hermes.cli.engine.model import find_model, model_options
from hermes.cli.engine.show import adapters, models
from hermes.cli.options import stored_variables


@click.group()
def engine() -> None:
    """Train and sample LoRA adapters on this machine, for the public `tinker` SDK and OpenAI clients."""


@engine.command()
@model_options
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", default=8001, show_default=True, type=click.IntRange(0, 65535), help="0: any free port."
)
@click.option(
    "--max-adapters", default=32, show_default=True, type=click.IntRange(min=1), help="Trained at once."
)
@click.option("--max-length", type=click.IntRange(min=2), help="Longest sequence; default: the model's own.")
@click.option(
    "--kv-gib",
    type=click.FloatRange(min=0, min_open=True),
    help="Memory for the keys and values of what is sampled, in GiB; it bounds prompt and answer as well. "
    "Default: a share of --memory-gib on a CPU, half of what is free on a GPU.",
)
@click.option(
    "--memory-gib",
    type=click.FloatRange(min=0, min_open=True),
    help="On a CPU, what the engine takes in all, in GiB. "
    "Default: 4, or three copies of the weights and 2.4 GiB where that is more.",
)
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where checkpoints are kept; default: engine/ in the Hermes home.",
)
@click.option(
    "--client-timeout",
    "client_timeout_s",
    default=300.0,
    show_default=True,
    type=click.FloatRange(min=1),
    help="Seconds of silence after which a client counts as gone and its adapters are freed.",
)
@click.option(
    "--tool-parser",
    default="hermes",
    show_default=True,
    help="Form in which the model calls tools, in chat; hermes offers them as text.",
)
@stored_variables
def serve(
    model: str,
    host: str,
    port: int,
    device: str,
    dtype: str,
    max_adapters: int,
    max_length: int | None,
    kv_gib: float | None,
    memory_gib: float | None,
    state_dir: Path | None,
    client_timeout_s: float,
    tool_parser: str,
) -> None:
    """Serve one base model and many adapters until interrupted.

    Clients set TINKER_BASE_URL to its address and TINKER_API_KEY to any key that begins with tml-; OpenAI
    clients use the address with /v1. On any address but loopback, HERMES_ENGINE_TOKEN must hold a token; the
    keys are then tml-TOKEN and TOKEN.
    """
    import logging
    import os

    from hermes.config.paths import home
    from hermes.engine.info import EngineOptions
    from hermes.engine.server.main import ServerOptions, serve
    from hermes.engine.server.security import TOKEN_VARIABLE
    from hermes.models.parsers import get_parser

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("hermes").setLevel(logging.INFO)
    folder, names = find_model(model)
    options = ServerOptions(
        engine=EngineOptions(
            model=folder,
            device=device,
            dtype=dtype,
            max_adapters=max_adapters,
            max_length=max_length,
            kv_bytes=None if kv_gib is None else int(kv_gib * 2**30),
            memory_bytes=None if memory_gib is None else int(memory_gib * 2**30),
        ),
        names=names,
        state_dir=state_dir or home() / "engine",
        host=host,
        port=port,
        token=os.environ.get(TOKEN_VARIABLE) or None,
        client_timeout_s=client_timeout_s,
        parser=get_parser(tool_parser).name,
    )
    serve(options, lambda address: click.echo(f"engine on {address}, model {names[0]}"))


for command in (models, adapters, import_, bench):
    engine.add_command(command)
