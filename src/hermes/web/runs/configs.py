"""The configuration of a run as flat values: what it was, its digest, what differs between several."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hermes.config import yaml_file
from hermes.core import parse_object
from hermes.disk.files import read_text
from hermes.errors import HermesError

_OF_ONE_RUN = frozenset(
    {"env.wandb_name", "env.data_dir_to_save_evals", "env.rollout_server_url", "openai.base_url"}
)
"""Fields that name the run, its folder or its ports, as the section `run` does."""


def read_config(folder: Path) -> dict[str, str]:
    """The configuration of a run, flat: `config.yaml` of an RL run, of any other the settings it recorded."""
    text = read_text(folder / "config.yaml")
    if text is not None:
        try:
            return flatten(yaml_file.parse(text, "config.yaml").data)
        except HermesError as error:
            return {"config.yaml": error.message}
    text = read_text(folder / "training.json")
    try:
        state = parse_object(text) if text else {}
    except ValueError as error:
        return {"training.json": str(error)}
    return flatten(state.get("settings") or {})


_NAMES_OF_A_RUN = frozenset({"run.run_id", "run.created_at_ms"})
"""Differ between any two runs."""


def flatten(data: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{name}.")
        elif isinstance(value, list) and len(value) == 1 and isinstance(value[0], Mapping):
            flat |= flatten(value[0], f"{name}.")
        else:
            flat[name] = value if isinstance(value, str) else json.dumps(value, default=str)
    return flat


def config_digest(data: Mapping[str, Any]) -> str | None:
    """Equal for runs of the same configuration, whatever their names, folders and ports; None: no field."""
    fields = {
        name: value
        for name, value in flatten(data).items()
        if not name.startswith("run.") and name not in _OF_ONE_RUN
    }
    content = json.dumps(fields, sort_keys=True)
    return hashlib.blake2b(content.encode(), digest_size=4).hexdigest() if fields else None


def differences(configs: Mapping[str, Mapping[str, str]]) -> tuple[list[tuple[str, list[str | None]]], int]:
    """The fields that differ, each with its values in the order of the runs; and how many are equal."""
    names = sorted({name for config in configs.values() for name in config} - _NAMES_OF_A_RUN)
    rows = [(name, [config.get(name) for config in configs.values()]) for name in names]
    differing = [(name, values) for name, values in rows if len(set(values)) > 1]
    return differing, len(rows) - len(differing)
