"""`hermes engine`: the local training and sampling server, and what a running one holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from hermes.cli.options import json_option

_URL = "http://127.0.0.1:8001"
_url_option = click.option("--url", default=_URL, show_default=True, help="Address of a running engine.")


@click.group()
def engine() -> None:
    """Train and sample LoRA adapters on this machine; the public `tinker` SDK is the client."""


@engine.command()
@click.option("--model", default="hermes/smollm2", show_default=True, help="Bundled, hub name or folder.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", default=8001, show_default=True, type=click.IntRange(0, 65535), help="0: any free port."
)
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda.")
@click.option(
    "--dtype",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "float32", "bfloat16"]),
    help="Of the base model; adapters and optimizer are float32.",
)
@click.option(
    "--max-adapters", default=32, show_default=True, type=click.IntRange(min=1), help="Trained at once."
)
@click.option("--max-length", type=click.IntRange(min=2), help="Longest sequence; default: the model's own.")
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
def serve(
    model: str,
    host: str,
    port: int,
    device: str,
    dtype: str,
    max_adapters: int,
    max_length: int | None,
    state_dir: Path | None,
    client_timeout_s: float,
) -> None:
    """Serve one base model and many adapters until interrupted.

    Clients set TINKER_BASE_URL to its address and TINKER_API_KEY to any key that begins with tml-. On any
    address but loopback, HERMES_ENGINE_TOKEN must hold a token; the key is then tml-TOKEN.
    """
    import logging
    import os

    from hermes.config.paths import home
    from hermes.engine.http.security import TOKEN_VARIABLE
    from hermes.engine.info import EngineOptions
    from hermes.engine.server import ServerOptions, serve

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("hermes").setLevel(logging.INFO)
    folder, names = _model(model)
    options = ServerOptions(
        engine=EngineOptions(
            model=folder, device=device, dtype=dtype, max_adapters=max_adapters, max_length=max_length
        ),
        names=names,
        state_dir=state_dir or home() / "engine",
        host=host,
        port=port,
        token=os.environ.get(TOKEN_VARIABLE) or None,
        client_timeout_s=client_timeout_s,
    )
    serve(options, lambda address: click.echo(f"engine on {address}, model {names[0]}"))


def _model(name: str) -> tuple[str, tuple[str, ...]]:
    """Where the weights are, and what clients may call them."""
    from hermes.config.paths import home
    from hermes.models import bundled

    if name == f"hermes/{bundled.NAME}":
        folder = str(bundled.prepare(home(), lambda line: click.echo(line, err=True)))
        return folder, (name, folder)
    if Path(name).is_dir():
        folder = str(Path(name).absolute())
        return folder, (folder,)
    return name, (name,)


@engine.command()
@_url_option
@json_option
def models(url: str, as_json: bool) -> None:
    """What a running engine serves."""
    served = _ask(url, "get_server_capabilities")["supported_models"]
    rows = [(one["model_name"], str(one["max_context_length"])) for one in served]
    _show(served, ("MODEL", "CONTEXT"), rows, as_json)


@engine.command()
@_url_option
@json_option
def adapters(url: str, as_json: bool) -> None:
    """The adapters of a running engine and their checkpoints."""
    runs = _ask(url, "training_runs?limit=1000")["training_runs"]
    kept = _ask(url, "checkpoints?limit=10000")["checkpoints"]
    for run in runs:
        prefix = f"tinker://{run['training_run_id']}/"
        run["checkpoints"] = [one for one in kept if one["tinker_path"].startswith(prefix)]
    rows = [
        (run["training_run_id"], str(run["lora_rank"]), run["last_request_time"][:19], checkpoint)
        for run in runs
        for checkpoint in [one["checkpoint_id"] for one in run["checkpoints"]] or [""]
    ]
    _show(runs, ("ADAPTER", "RANK", "LAST USED", "CHECKPOINT"), rows, as_json)


def _show(data: Any, header: tuple[str, ...], rows: Sequence[tuple[str, ...]], as_json: bool) -> None:
    if as_json:
        import json

        click.echo(json.dumps(data, indent=2))
        return
    from hermes.cli.tables import aligned

    for line in aligned([header, *rows]):
        click.echo(line)


def _ask(url: str, what: str) -> Any:
    import json
    import os
    import urllib.error
    import urllib.request

    from hermes.engine.http.security import KEY_PREFIX, TOKEN_VARIABLE
    from hermes.errors import HermesError, UsageError

    if not url.startswith(("http://", "https://")):
        raise UsageError(f"'{url}' is not an address", f"write it like {_URL}")
    key = f"{KEY_PREFIX}{os.environ.get(TOKEN_VARIABLE, '')}"
    request = urllib.request.Request(f"{url.rstrip('/')}/api/v1/{what}", headers={"X-API-Key": key})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        detail = error.read(1000).decode(errors="replace")
        raise HermesError(f"the engine on {url} refused: {error.code} {detail}") from error
    except (OSError, ValueError) as error:
        raise HermesError(
            f"no engine answers on {url}: {error}", "start one with: hermes engine serve"
        ) from error
