"""The newest published weights of an engine, as PEFT adapters in a folder that a fleet's servers read."""

from __future__ import annotations

import re
import shutil
import urllib.parse
from dataclasses import dataclass
from pathlib import Path

from hermes.engine.lora.adapter_tar import ADAPTER_FILES
from hermes.engine.server.client import request_json
from hermes.errors import HermesError
from hermes.serving.fetch import fetch_file

_POLICY = "policy"
_SCHEME = "tinker://"
_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    key: str
    """The engine's name for the weights: path and time."""
    folder: Path | None
    """Of the adapter; None: the base model."""

    @property
    def adapter_name(self) -> str:
        return adapter_name(self.key)


def adapter_name(key: str) -> str:
    """Another one for every version, also if a checkpoint is written again under its name."""
    return "hermes-" + re.sub(r"[^A-Za-z0-9_.]+", "-", key.removeprefix(_SCHEME))


class VersionSource:
    def __init__(self, engine_url: str, folder: Path) -> None:
        """`folder`: has one folder a version; the servers read it under the same path."""
        self._engine_url, self._folder = engine_url, folder

    def newest(self, current: PolicyVersion | None) -> PolicyVersion | None:
        """The version that `policy` names now, fetched; `current` if it is still that one.

        None: it cannot be fetched, because it is no checkpoint or was replaced meanwhile. HermesError: the
        engine does not answer.
        """
        versions = self._versions()
        base = next(iter(versions.values()))
        key = versions.get(_POLICY, base)
        if current is not None and current.key == key:
            return current
        if key == base:
            return PolicyVersion(key, None)
        return self._fetch(key) if key.startswith(_SCHEME) else None

    def _versions(self) -> dict[str, str]:
        """The version of the weights that each name of the engine refers to; the base model is the first."""
        cards = request_json(self._engine_url, "v1/models")["data"]
        return {str(card["id"]): str(card["metadata"]["weight_version"]) for card in cards}

    def forget(self, version: PolicyVersion) -> None:
        """Deletes the files of a version that no server needs any more."""
        if version.folder is not None:
            shutil.rmtree(version.folder, ignore_errors=True)

    def _fetch(self, key: str) -> PolicyVersion | None:
        path = key.partition("@")[0]
        run, kind, name = path.removeprefix(_SCHEME).split("/", 2)
        target = self._folder / adapter_name(key)
        if not target.is_dir():
            checkpoint = f"api/v1/training_runs/{run}/checkpoints/{kind}/{urllib.parse.quote(name)}"
            urls = request_json(self._engine_url, f"{checkpoint}/external_weights_urls")["urls"]
            draft = target.with_name(f"{target.name}.draft")
            draft.mkdir(parents=True, exist_ok=True)
            for file in ADAPTER_FILES:
                _download(urls[file], draft / file)
            if self._versions().get(path) != key:
                shutil.rmtree(draft)
                return None
            draft.rename(target)
        return PolicyVersion(key, target)


def _download(url: str, target: Path) -> None:
    try:
        fetch_file(url, target, _TIMEOUT_S)
    except OSError as error:
        raise HermesError(f"the adapter cannot be fetched from the engine: {error}") from error
