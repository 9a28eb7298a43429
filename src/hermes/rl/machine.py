"""Whether this machine can train a model, and what is missing where it cannot."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hermes.rl.settings import read_settings
from hermes.safety.access import leads_to_loopback

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hermes.config.load import Config
    from hermes.rl.settings import RlSettings

_NEEDED = ("torch", "transformers", "safetensors", "starlette", "uvicorn", "tinker")
_MOST_ON_CPU = 3e9
"""Parameters above which a run on a CPU would not end in reasonable time."""


class Missing(NamedTuple):
    what: str
    fix: str


def why_not(config: Config, model: str) -> Missing | None:
    """None if a run of this model can be started here."""
    settings = read_settings(config.home)
    return missing_packages(settings, config.environ) or _missing_gpu(settings, model)


def missing_packages(settings: RlSettings, environ: Mapping[str, str]) -> Missing | None:
    """Without any model in mind: packages, or the key of an engine elsewhere."""
    url = settings.engine_url
    needed = _NEEDED if url is None else ("tinker", "starlette", "uvicorn")
    for package in needed:
        if find_spec(package) is None:
            return Missing(
                f"training needs the package '{package}', which is not installed",
                "pip install 'hermes-research[train]'",
            )
    if url is not None and not leads_to_loopback(url) and not environ.get("TINKER_API_KEY"):
        return Missing(
            f"the engine at {url} needs a key, and TINKER_API_KEY is not set",
            "hermes config set TINKER_API_KEY (asks for it)",
        )
    return None


def has_gpu() -> bool:
    return shutil.which("nvidia-smi") is not None or Path("/proc/driver/nvidia/version").exists()


def _missing_gpu(settings: RlSettings, model: str) -> Missing | None:
    from hermes.training.schedule import parameters_of

    if settings.engine_url is not None or has_gpu():
        return None
    if settings.device == "cuda":
        return Missing("device is cuda in rl.yaml, and this machine has no GPU", "set device: auto there")
    parameters = parameters_of(model)
    if parameters is None or parameters < _MOST_ON_CPU:
        return None
    return Missing(
        f"{model} has {parameters / 1e9:.3g} billion parameters and needs a GPU; this machine has none",
        "set model: hermes/smollm2, or engine_url, in rl.yaml of the Hermes home",
    )
