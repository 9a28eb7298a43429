"""Downloads weights from an engine or service through the public SDK: exported there, fetched file by
file."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.errors import HermesError
from hermes.serving.fetch import fetch_file

if TYPE_CHECKING:
    import tinker

    from hermes.training.service.client import ServiceConnection

_TIMEOUT_S = 600.0
_CLOSE_TIMEOUT_S = 5.0
_TRAINING = "weights"
_EXPORT_TTL_S = 3600
"""How long the service keeps the export: the shortest time it offers."""


def download(connection: ServiceConnection, path: str, target: Path) -> None:
    """Writes the adapter's files into the folder. `path`: tinker://RUN/KIND/NAME, or tinker://RUN."""
    import tinker

    from hermes.training.service.client import check_reachable

    if connection.local:
        check_reachable(connection.url)
    try:
        service = tinker.ServiceClient(base_url=connection.base_url, api_key=connection.key)
        try:
            rest = tinker.RestClient(base_url=connection.base_url, api_key=connection.key)
            _download(service, rest, _training_path(rest, path), target)
        finally:
            with contextlib.suppress(tinker.TinkerError, TimeoutError):
                service.close("success").result(timeout=_CLOSE_TIMEOUT_S)
    except (tinker.TinkerError, OSError, ValueError) as error:
        raise HermesError(
            f"{path} cannot be fetched from {connection.url}: {error}",
            "check TINKER_API_KEY and that it is up",
        ) from error


def _training_path(rest: tinker.RestClient, path: str) -> str:
    """The checkpoint that training resumes from: a service exports no others."""
    run_id, _, name = path.removeprefix("tinker://").partition("/")
    kind, _, name = name.partition("/")
    if kind == _TRAINING:
        return path
    saved = rest.list_checkpoints(run_id).result().checkpoints
    paths = {checkpoint.tinker_path: checkpoint.time for checkpoint in saved}
    names = [saved for saved in paths if f"/{_TRAINING}/" in saved]
    if name:
        names = [saved for saved in names if saved == f"tinker://{run_id}/{_TRAINING}/{name}"]
    if not names:
        raise HermesError(
            f"the service has no checkpoint tinker://{run_id}/{_TRAINING}/{name or '…'} to export",
            f"it has: {', '.join(sorted(paths)) or 'none of this run'}",
        )
    return max(names, key=lambda saved: paths[saved])


def _download(
    service: tinker.ServiceClient, rest: tinker.RestClient, weights_path: str, target: Path
) -> None:
    client = service.create_training_client_from_state(weights_path)
    export = client.save_weights_external(f"export-{time.time_ns()}", ttl_seconds=_EXPORT_TTL_S)
    files = rest.get_external_weights_urls(export.result().path).result().urls
    target.mkdir(parents=True, exist_ok=True)
    for name, address in files.items():
        fetch_file(address, target / Path(name).name, _TIMEOUT_S)
