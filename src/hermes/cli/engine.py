"""`hermes engine`: the local training and sampling server, and the commands that talk to a running one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import click

from hermes.cli.model_options import model_options
from hermes.cli.options import CommandGroup, DeviceChoice, RenamedOption, json_option, stored_variables
from hermes.cli.terminal.progress import ProgressLines
from hermes.cli.terminal.waiting import Waiting, waiting
from hermes.config.option import Options, option
from hermes.engine.server.options import EngineServeOptions, ModelOptions

_url_option = click.option(
    "--service",
    "--url",
    "url",
    cls=RenamedOption,
    metavar="URL",
    default="http://127.0.0.1:8001",
    show_default=True,
    help="Address of a running engine.",
)


@click.group(cls=CommandGroup)
def engine() -> None:
    """Train and sample LoRA adapters on this machine, for the public `tinker` SDK and OpenAI clients."""


@engine.command()
@model_options(EngineServeOptions)
@stored_variables
def serve(options: EngineServeOptions) -> None:
    """Serve one base model and many adapters until interrupted.

    Clients set TINKER_BASE_URL to its address and TINKER_API_KEY to any key that begins with tml-; OpenAI
    clients use the address with /v1. On any address but loopback, HERMES_ENGINE_TOKEN must hold a token; the
    keys are then tml-TOKEN and TOKEN. On loopback without one, only connections of the user who started it
    are answered.
    """
    import logging
    import os
    import sys

    from hermes.cli.terminal.interrupted import report_stop
    from hermes.config.paths import home
    from hermes.engine.info import EngineOptions
    from hermes.engine.server.main import ServerOptions, serve
    from hermes.engine.server.security import TOKEN_VARIABLE
    from hermes.models.parsers import get_parser
    from hermes.safety.output.logs import log_to_stderr

    log_to_stderr(logging.WARNING)
    logging.getLogger("hermes").setLevel(logging.INFO)
    folder, names = _find_model(options.model)
    server = ServerOptions(
        engine=EngineOptions(
            model=folder,
            device=_device(options.device),
            dtype=options.dtype,
            quantize=options.quantize,
            max_adapters=options.max_adapters,
            max_length=options.max_length,
            kv_bytes=None if options.kv_gib is None else int(options.kv_gib * 2**30),
            memory_bytes=None if options.memory_gib is None else int(options.memory_gib * 2**30),
            exact=options.exact,
            tensor_parallel_size=options.tensor_parallel_size,
        ),
        names=names,
        state_dir=options.state_dir or (None if options.policies else home() / "engine"),
        policies=tuple(map(_named_folder, options.policies)),
        token=os.environ.get(TOKEN_VARIABLE) or None,
        parser=get_parser(options.tool_parser).name,
        replicas=_replica_count(options.replicas),
        command=options,
    )
    if options.no_token and server.token is None:
        click.echo(
            "--no-token: every user of this machine can use, download and delete the adapters", err=True
        )
    sign, output = Waiting(), sys.stdout  # Ray's own output is discarded while a cluster is used

    def announce(address: str) -> None:
        sign.stop()
        served = ", ".join(name for name, _ in server.policies) or names[0]
        click.echo(f"engine on {address}, model {served}", file=output)

    sign.start(f"loading {names[0]}")
    try:
        serve(server, announce)
    finally:
        sign.stop()
    report_stop("engine serve")


class FleetServeOptions(Options):
    servers: tuple[str, ...] = option(
        ..., "A vLLM or SGLang server; repeatable.", "--base-url", metavar="URL"
    )
    dialect: Literal["vllm", "sglang"] = option("vllm", "Kind of the servers.", "--type")
    folder: Path = option(
        ..., "Where adapters are written; the servers read it under the same path.", path="folder"
    )
    host: str = option("127.0.0.1", "Address to listen on.")
    port: int = option(8003, "0: any free port.", ge=0, le=65535)


@engine.command()
@model_options(FleetServeOptions)
@_url_option
@stored_variables
def fleet(options: FleetServeOptions, url: str) -> None:
    """Sample the policy of a running engine on vLLM or SGLang servers.

    They load the adapter that the engine published last, and environments sample at this address.

    HERMES_ENGINE_TOKEN is the token of engine and fleet, HERMES_FLEET_KEY the API key of the servers.
    """
    import logging
    import os

    from hermes.cli.terminal.interrupted import report_stop
    from hermes.engine.server.security import TOKEN_VARIABLE
    from hermes.rl.fleet.dialect import DIALECTS
    from hermes.rl.fleet.members import KEY_VARIABLE
    from hermes.rl.fleet.serve import FleetOptions, serve
    from hermes.safety.output.logs import log_to_stderr

    log_to_stderr(logging.WARNING)
    fleet_options = FleetOptions(
        engine_url=url,
        servers=options.servers,
        dialect=DIALECTS[options.dialect],
        folder=options.folder,
        host=options.host,
        port=options.port,
        token=os.environ.get(TOKEN_VARIABLE) or None,
        server_key=os.environ.get(KEY_VARIABLE) or None,
    )
    count = len(options.servers)
    serve(fleet_options, lambda address: click.echo(f"fleet of {count} on {address}, model policy"))
    report_stop("engine fleet")


@engine.command()
@_url_option
@json_option
@stored_variables
def models(url: str, as_json: bool) -> None:
    """List the models that a running engine serves, with their weights."""
    from hermes.engine.server.client import request_json

    served = request_json(url, "v1/models")["data"]
    rows = [
        (model["id"], str(model["max_model_len"]), model["metadata"]["weight_version"]) for model in served
    ]
    _print_table(served, ("MODEL", "CONTEXT", "WEIGHTS"), rows, as_json)


@engine.command()
@_url_option
@json_option
@stored_variables
def adapters(url: str, as_json: bool) -> None:
    """List the adapters of a running engine and their checkpoints."""
    from hermes.engine.server.client import request_json

    runs = request_json(url, "api/v1/training_runs?limit=1000")["training_runs"]
    checkpoints = request_json(url, "api/v1/checkpoints?limit=10000")["checkpoints"]
    for run in runs:
        prefix = f"tinker://{run['training_run_id']}/"
        run["checkpoints"] = [
            checkpoint for checkpoint in checkpoints if checkpoint["tinker_path"].startswith(prefix)
        ]
    rows = [
        (run["training_run_id"], str(run["lora_rank"]), run["last_request_time"][:19], checkpoint_id)
        for run in runs
        for checkpoint_id in [checkpoint["checkpoint_id"] for checkpoint in run["checkpoints"]] or [""]
    ]
    _print_table(runs, ("ADAPTER", "RANK", "LAST USED", "CHECKPOINT"), rows, as_json)


def _print_table(data: Any, header: tuple[str, ...], rows: Sequence[tuple[str, ...]], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(data, indent=2))
        return
    from hermes.cli.tables import print_table

    print_table([header, *rows])


@engine.command("import")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--name", help="Name of the adapter in the engine; default: the folder's name.")
@_url_option
@json_option
@stored_variables
def import_(folder: Path, name: str | None, url: str, as_json: bool) -> None:
    """Upload the PEFT adapter in FOLDER to a running engine.

    It can then be sampled and trained on.

    The files are sent, so the engine may run elsewhere. It keeps the checkpoints until they are deleted.
    """
    from hermes.engine.server.client import import_adapter

    with waiting(f"sending {folder}"):
        adapter = import_adapter(url, folder, name or folder.absolute().name)
    if as_json:
        click.echo(json.dumps(adapter, indent=2))
        return
    click.echo(f"{adapter['name']}: rank {adapter['rank']}, on {adapter['base_model']}")
    click.echo(f"  model name   {adapter['name']}")
    click.echo(f"  to sample    {adapter['sampler_weights']}")
    click.echo(f"  to train on  {adapter['weights']}")
    if adapter["made_for"] and Path(adapter["made_for"]).name != Path(adapter["base_model"]).name:
        note = f"note: the adapter says it was made for {adapter['made_for']}; its shapes fit this model"
        click.echo(note, err=True)


@engine.command()
@model_options(ModelOptions)
@json_option
@stored_variables
def bench(options: ModelOptions, as_json: bool) -> None:
    """Measure generation and training on this machine.

    The workload is smaller without a GPU; --json reports it.
    """
    import importlib.util

    from hermes.errors import MissingDependencyError

    for package in ("torch", "transformers", "safetensors"):
        if importlib.util.find_spec(package) is None:
            raise MissingDependencyError(package, "train", "the engine's benchmark")
    from hermes.models.local.torch_threads import import_torch

    import_torch()  # as the server does
    from hermes.engine.bench import bench as measure
    from hermes.engine.info import EngineOptions

    folder, _ = _find_model(options.model)
    engine_options = EngineOptions(
        folder, device=_device(options.device), dtype=options.dtype, quantize=options.quantize
    )
    with waiting(f"measuring {options.model}"):
        report = measure(engine_options)
    click.echo(json.dumps(report, indent=2) if as_json else _bench_text(report))


def _device(name: str) -> str:
    return DeviceChoice().convert(name, None, click.get_current_context())


def _named_folder(text: str) -> tuple[str, Path]:
    from hermes.errors import UsageError

    name, equals, folder = text.partition("=")
    if not (name and equals and Path(folder).is_dir()):
        raise UsageError(f"--policy {text}: expected NAME=FOLDER", "give the folder of an adapter")
    return name, Path(folder)


def _replica_count(text: str) -> int | None:
    """None: automatic."""
    from hermes.errors import UsageError

    if text == "auto":
        return None
    if not text.isdecimal() or not 1 <= int(text) <= 64:
        raise UsageError(f"--replicas is '{text}'", "give a number from 1 to 64, or auto")
    return int(text)


def _bench_text(report: dict[str, Any]) -> str:
    from hermes.cli.tables import table_lines

    rows = [("", "PER S", "PEAK GIB")]
    for figure in report["engine"]:
        peak = f"{figure['peak_gib']:.1f}" if figure["peak_gib"] else ""
        rows.append((figure["what"], _rate(figure["per_s"]), peak))
    title = f"{report['model']} in {report['dtype']} on {report['device']}, torch {report['torch']}"
    return "\n".join([title, *table_lines(rows), f"Peak GiB: {report['peak_gib_is']}."])


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.2f}"


def _find_model(name: str) -> tuple[str, tuple[str, ...]]:
    """The folder or hub name of the weights, and the names under which clients may request them."""
    from hermes.config.paths import home
    from hermes.config.providers import check_bundled
    from hermes.errors import UsageError
    from hermes.models.local import bundled

    if name == f"hermes/{bundled.NAME}":
        with ProgressLines(to_stderr=True) as progress:
            folder = str(bundled.prepare(home(), progress))
        return folder, (name, folder)
    if Path(name).is_dir():
        folder = str(Path(name).absolute())
        return folder, (folder,)
    if name.startswith(("/", ".", "~")):
        raise UsageError(f"there is no folder '{name}'", "give a folder with a model, or a hub name")
    check_bundled(name)
    return name, (name,)
