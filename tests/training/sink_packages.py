"""Packages of sinks that a test needs."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution

import pytest


def needs(package: str) -> None:
    """By what is installed: a stand-in for an environment's imports may lie in this process's modules."""
    try:
        distribution(package)
    except PackageNotFoundError:
        pytest.skip(f"the package {package} is not installed")
