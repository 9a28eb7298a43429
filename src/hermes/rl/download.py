"""Weights from an engine or service elsewhere, by the public SDK: exported there, fetched file by file."""

from __future__ import annotations

import contextlib
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.errors import HermesError

if TYPE_CHECKING:
    import tinker

    from hermes.training.client import Connection

_TIMEOUT_S = 600.0
_GOODBYE_S = 5.0
_KEPT_S = 3600
"""How long the service keeps what it exported: the least that it offers."""


def download(connection: Connection, weights_path: str, target: Path) -> Path:
    """Writes the adapter's files into the folder. `weights_path` is what training would go on from."""
    import tinker

    try:
        service = tinker.ServiceClient(base_url=connection.base_url, api_key=connection.key)
        try:
            _download(service, weights_path, target)
        finally:
            with contextlib.suppress(tinker.TinkerError, TimeoutError):
                service.close("success").result(timeout=_GOODBYE_S)
    except (tinker.TinkerError, OSError, ValueError) as error:
        raise HermesError(
            f"{weights_path} cannot be fetched from {connection.url}: {error}",
            "check TINKER_API_KEY and that it is up",
        ) from error
    return target


def _download(service: tinker.ServiceClient, weights_path: str, target: Path) -> None:
    client = service.create_training_client_from_state(weights_path)
    asked = client.save_weights_external(f"export-{time.time_ns()}", ttl_seconds=_KEPT_S)
    files = service.create_rest_client().get_external_weights_urls(asked.result().path).result().urls
    target.mkdir(parents=True, exist_ok=True)
    for name, address in files.items():
        _fetch(address, target / Path(name).name)


def _fetch(address: str, target: Path) -> None:
    with urllib.request.urlopen(address, timeout=_TIMEOUT_S) as answer, target.open("wb") as file:
        while block := answer.read(1 << 20):
            file.write(block)
