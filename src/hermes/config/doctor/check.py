"""The input and the report of a check of `hermes doctor`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from hermes.config.load import Config, SettingOrigin
from hermes.config.settings import Settings
from hermes.core import JSONObject
from hermes.errors import HermesError


class CheckStatus(StrEnum):
    OK = "ok"
    WARN = "warn"
    """Works, but not as it should."""
    MISSING = "missing"
    """Optional and not there."""
    FAIL = "fail"
    """Hermes cannot work without it."""


@dataclass(frozen=True, slots=True)
class Check:
    """One finding."""

    name: str
    status: CheckStatus
    what: str
    """The finding."""
    gives: str = ""
    """The feature that is missing without it."""
    fix: str = ""
    """The exact command, where there is one."""

    def to_json(self) -> JSONObject:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Subject:
    """The things that are examined: the home, the environment, and the configuration if it can be read."""

    home: Path
    environ: Mapping[str, str]
    config: Config | None
    error: HermesError | None
    """Why there is no configuration."""

    @property
    def settings(self) -> Settings:
        """As configured; the defaults if the configuration is broken."""
        return self.config.settings if self.config else Settings()

    def origin(self, variable: str) -> SettingOrigin | None:
        """Where a variable comes from; None if it is unset or empty."""
        if self.config:
            return self.config.variable_origin(variable)
        return SettingOrigin.ENVIRONMENT if self.environ.get(variable) else None
