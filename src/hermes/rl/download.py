"""Weights from an engine or service elsewhere, by the public SDK: exported there, fetched file by file."""

from __future__ import annotations

import os
import time
import urllib.request
from pathlib import Path

from hermes.errors import HermesError

_TIMEOUT_S = 600.0


def download(url: str, weights_path: str, target: Path) -> Path:
    """Writes the adapter's files into the folder. `weights_path` is what training would go on from."""
    import tinker

    key = os.environ.get("TINKER_API_KEY", "tml-local")
    try:
        service = tinker.ServiceClient(base_url=url, api_key=key)
        client = service.create_training_client_from_state(weights_path)
        exported = client.save_weights_external(f"export-{time.time_ns()}").result().path
        files = service.create_rest_client().get_external_weights_urls(exported).result().urls
        target.mkdir(parents=True, exist_ok=True)
        for name, address in files.items():
            _fetch(address, target / Path(name).name)
    except (tinker.TinkerError, OSError, ValueError) as error:
        raise HermesError(
            f"{weights_path} cannot be fetched from {url}: {error}", "check TINKER_API_KEY and that it is up"
        ) from error
    return target


def _fetch(address: str, target: Path) -> None:
    with urllib.request.urlopen(address, timeout=_TIMEOUT_S) as answer, target.open("wb") as file:
        while block := answer.read(1 << 20):
            file.write(block)
