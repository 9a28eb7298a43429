"""Whether this machine can train a model, and what is missing if it cannot."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hermes.config.providers import check_bundled
from hermes.config.settings import MANAGED
from hermes.rl.service import KEY_VARIABLES, needs_key, service_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hermes.config.load import Config
    from hermes.config.settings import RlSettings

_NEEDED = ("torch", "transformers", "safetensors", "starlette", "uvicorn", "tinker")
_MAX_ON_CPU = 3e9
"""Parameters above which a run on a CPU would not end in reasonable time."""


class MissingRequirement(NamedTuple):
    problem: str
    fix: str


def missing_requirement(config: Config, model: str) -> MissingRequirement | None:
    """The requirement of this model that this machine lacks; None: nothing.

    UsageError: an engine here would have to load a bundled model that there is not.
    """
    settings = config.settings.rl
    if service_of(settings, config.environ) is None and not Path(model).is_dir():
        check_bundled(model)
    return missing_packages(settings, config.environ) or missing_gpu(settings, config.environ, model)


def missing_packages(settings: RlSettings, environ: Mapping[str, str]) -> MissingRequirement | None:
    """A package that is not installed, or the key of a service; independent of the model."""
    for package in _NEEDED:
        if find_spec(package) is None:
            return MissingRequirement(
                f"training needs the package '{package}', which is not installed",
                "pip install 'hermes-research[train]'",
            )
    service = service_of(settings, environ)
    if service is not None and needs_key(service) and not any(map(environ.get, KEY_VARIABLES)):
        named = "the managed service" if service == MANAGED else f"the service {service}"
        return MissingRequirement(
            f"{named} needs a key, and TINKER_API_KEY is not set",
            "hermes config set TINKER_API_KEY (asks for it)",
        )
    return None


def has_gpu() -> bool:
    return shutil.which("nvidia-smi") is not None or Path("/proc/driver/nvidia/version").exists()


def missing_gpu(settings: RlSettings, environ: Mapping[str, str], model: str) -> MissingRequirement | None:
    """The GPU that an engine here would need for the model. Nothing is downloaded to find out."""
    from hermes.training.schedule import parameters_of

    if service_of(settings, environ) is not None or has_gpu():
        return None
    if settings.device == "cuda":
        return MissingRequirement(
            "rl.device is cuda, and this machine has no GPU", "hermes config set rl.device auto"
        )
    parameters = parameters_of(model)
    if parameters is None or parameters < _MAX_ON_CPU:
        return None
    return MissingRequirement(
        f"{model} has {parameters / 1e9:.3g} billion parameters and needs a GPU; this machine has none",
        "train hermes/smollm2 (--model, or rl.model), or train elsewhere (--service, or rl.service)",
    )


_FULL_BYTES = 4 << 20
"""With less room than this nothing of a run can be saved."""
_MORE_BYTES = 32 << 20
"""How much more than at the failure has to be free before the run goes on."""
_ERRORS = ("No space left on device", "Disk quota exceeded", "database or disk is full")


@dataclass(frozen=True, slots=True)
class DiskRoom:
    """The disk of a run at the time a process failed on it."""

    folder: Path
    free_bytes: int

    @classmethod
    def if_full(cls, folder: Path, log: str = "") -> DiskRoom | None:
        """None: the disk has room, and the log of the process does not say that it had none."""
        free_bytes = shutil.disk_usage(folder).free
        is_full = free_bytes < _FULL_BYTES or any(error in log for error in _ERRORS)
        return cls(folder, free_bytes) if is_full else None

    def has_room_again(self) -> bool:
        return shutil.disk_usage(self.folder).free >= self.free_bytes + _MORE_BYTES

    def sentence(self) -> str:
        return (
            f"the disk is full ({self.free_bytes / 1e6:.0f} MB were left at {self.folder}): the run waits, "
            f"and goes on by itself when {_MORE_BYTES / 1e6:.0f} MB more are free"
        )
