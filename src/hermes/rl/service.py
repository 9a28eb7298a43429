"""Where a run's weights are: at its own engine, or at a Tinker service."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.config.settings import MANAGED
from hermes.safety.access import leads_to_loopback

if TYPE_CHECKING:
    from hermes.config.settings import RlSettings
    from hermes.training.service.client import ServiceConnection

KEY_VARIABLES = ("TINKER_API_KEY", "HERMES_ENGINE_TOKEN")
LOCAL_KEY = "tml-local"


def service_of(settings: RlSettings, environ: Mapping[str, str]) -> str | None:
    """The address of the service, or MANAGED; None: every run has its own engine."""
    return settings.service or environ.get("TINKER_BASE_URL") or None


def needs_key(service: str) -> bool:
    return service == MANAGED or not leads_to_loopback(service)


def connect(home: Path, service: str) -> ServiceConnection:
    """A connection with the key from the configuration of that home."""
    import os

    from hermes.config.load import load
    from hermes.training.service.client import connection

    return connection(service, load(environ={**os.environ, "HERMES_HOME": str(home)}).environ)
