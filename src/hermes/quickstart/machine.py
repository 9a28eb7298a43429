"""Checks what the quickstart needs of this machine before anything is started."""

from __future__ import annotations

import importlib.util

from hermes.config.paths import home
from hermes.errors import MissingDependencyError, UsageError
from hermes.models.local.bundled import Progress, fetch

_NEEDED = ("torch", "transformers", "tinker", "starlette", "uvicorn")


def choose_device(requested: str, progress: Progress) -> str:
    """cpu or cuda. MissingDependencyError if a package is missing, UsageError if there is no GPU."""
    for package in _NEEDED:
        if importlib.util.find_spec(package) is None:
            raise MissingDependencyError(package, "train,web", "The quickstart")
    fetch(home(), progress)
    if requested == "cpu":
        return requested
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if requested == "cuda":
        raise UsageError("there is no CUDA device here", "leave out --device, and it runs on the CPU")
    return "cpu"
