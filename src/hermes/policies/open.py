"""Uses a policy: in this process, or from an engine that serves it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.disk.files import atomic_write, ensure_dir
from hermes.engine.server.options import EngineServeOptions
from hermes.errors import HermesError, UsageError
from hermes.models.local import bundled
from hermes.rl.process import HERMES
from hermes.rl.supervise import ports
from hermes.serving.fetch import fetch_json
from hermes.training.policy_registry import PolicyRecord, PolicyRegistry

if TYPE_CHECKING:
    from hermes.config.load import Config
    from hermes.models.base import ChatModel
    from hermes.rl.weights.source import WeightsSource

_SERVING = "serving.json"


def open_policy_model(
    config: Config, record: PolicyRecord, progress: Callable[[str], None] | None = None
) -> ChatModel:
    """The policy in this process, named `policy:ID`; the base model itself before the first promotion."""
    from hermes.models.open import open_model

    if record.sampler is None and is_bundled(record.base_model):
        return open_model(config, record.base_model, progress=progress)
    from hermes.models.local.chat import LocalChat

    if record.sampler is None:
        return LocalChat.open(str(base_folder(record.base_model)), config.home)
    folder = merged_folder(config, record, progress)
    LocalChat.open(str(folder), config.home)  # complains about what is missing
    return LocalChat(f"policy:{record.id}", lambda: folder)


def is_bundled(base_model: str) -> bool:
    """Whether chat and batch know the base model by this name; others are a folder, or on the hub."""
    return base_model == f"hermes/{bundled.NAME}"


def base_folder(base_model: str) -> Path:
    """The folder of a base model that is not the bundled one."""
    folder = Path(base_model).expanduser()
    return folder if folder.is_dir() else Path(_hub_folder(base_model))


def _hub_folder(model: str) -> str:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        return str(snapshot_download(model))
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise HermesError(
            f"the base model {model} is neither a folder nor on the hub: {error}",
            "check its name and your connection",
        ) from error


def merged_folder(
    config: Config, record: PolicyRecord, progress: Callable[[str], None] | None = None
) -> Path:
    """The base model with the policy's adapter, as a model folder; made once."""
    from hermes.rl.weights.export import export_merged

    source = _weights_source(config, record)
    if not (source.merged_folder / "config.json").exists() and progress is not None:
        progress(f"merging the weights of policy {record.id}")
    return export_merged(source)


def check_servable(config: Config, record: PolicyRecord) -> None:
    """UsageError if nothing could answer as this policy: its weights are not in this home, and no service has
    them. What a service has is copied into the home."""
    from hermes.rl.weights.export import export_adapter

    if record.weights is None:
        return
    try:
        source = _weights_source(config, record)
        if source.folder is None:
            export_adapter(source)
    except HermesError as error:
        raise UsageError(
            f"the weights {record.weights} are not in this home, and cannot be fetched: {error.message}",
            "name weights of 'hermes rl status --all' or of a checkpoint in this home, or start the service "
            "that has them",
        ) from error


def _weights_source(config: Config, record: PolicyRecord) -> WeightsSource:
    """The adapter of a policy: its copy in the home, else where it was trained."""
    from hermes.rl.weights.source import find_source, is_complete

    target = PolicyRegistry(config.home).folder / record.id
    assert record.weights is not None
    paths = [path for path in (record.sampler, record.weights) if path is not None]
    sources = [find_source(config, path) for path in paths]
    source = next((source for source in sources if source.folder is not None), sources[-1])
    copy = target / "adapter"
    return replace(
        source,
        folder=copy if is_complete(copy) else source.folder,
        base_model=record.base_model,
        adapter_folder=copy,
        merged_folder=target / "merged",
    )


def serve_policy(
    config: Config, record: PolicyRecord, port: int | None, announce: Callable[[str], None]
) -> None:
    """Becomes an engine that serves the policy; does not return."""
    from hermes.config.environment import without_stored

    chosen = port if port is not None else ports.choose(ports.ENGINE_PORT)
    url = f"http://127.0.0.1:{chosen}"
    model = record.sampler or record.base_model
    announce(f"serving policy {record.id} at {url}/v1, model {model}")
    registry = PolicyRegistry(config.home)
    ensure_dir(registry.folder)
    atomic_write(registry.folder / _SERVING, json.dumps({"url": url, "base_model": record.base_model}))
    options = EngineServeOptions(model=record.base_model, port=chosen, state_dir=config.home / "engine")
    command = (*HERMES, *options.arguments())
    os.execve(command[0], command, {**without_stored(os.environ), "HERMES_HOME": str(config.home)})


def policy_endpoint(config: Config, record: PolicyRecord) -> tuple[str, str | None]:
    """Model name and address for processes that share one policy; no address if it is the bundled model."""
    if record.sampler is None and is_bundled(record.base_model):
        return record.base_model, None
    path = PolicyRegistry(config.home).folder / _SERVING
    try:
        serving = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        serving = {}
    except (OSError, ValueError) as error:
        raise HermesError(f"{path} cannot be read: {error}", "remove it, and hermes policy serve") from error
    url = serving.get("url")
    if url is None or fetch_json(f"{url}/health") is None:
        raise UsageError(
            f"nothing serves the policy {record.id}", "hermes policy serve, in another terminal; then again"
        )
    return record.sampler or record.base_model, f"{url}/v1"
