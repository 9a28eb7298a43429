"""What a person decides about RL runs: `rl.yaml` in the home. The agent's tools never write it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from hermes.config import yaml_file
from hermes.config.files import read_text
from hermes.config.settings import http_url
from hermes.errors import ConfigError

NAME = "rl.yaml"


class RlSettings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    model: str = Field(default="hermes/smollm2", description="Base model: bundled, hub name or folder.")
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="Where the engine computes.")
    environments: tuple[str, ...] = Field(default=(), description="More folders with environments.")
    engine_url: str | None = Field(
        default=None, description="An engine that already runs; unset: every run starts its own."
    )
    values: dict[str, Any] = Field(
        default_factory=dict, description="Field → value in place of the recipe's, locked ones included."
    )
    unlock: tuple[str, ...] = Field(default=(), description="Locked fields that may be edited for each run.")
    max_steps: int | None = Field(default=None, ge=1, description="Most steps of a run the agent starts.")
    max_hours: float | None = Field(
        default=None, gt=0, description="Longest wall clock of a run the agent starts."
    )

    @field_validator("engine_url")
    @classmethod
    def _check_engine_url(cls, value: str | None) -> str | None:
        return None if value is None else http_url(value)


def read_settings(home: Path) -> RlSettings:
    """A missing file is all defaults; ConfigError names the place of what is wrong."""
    path = home / NAME
    document = yaml_file.parse(read_text(path) or "", str(path))
    try:
        return RlSettings.model_validate(document.data)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        place = document.place([str(part) for part in first["loc"]]) or str(path)
        raise ConfigError(f"{place}: {key}: {first['msg'].lower()}", f"correct or remove {key}") from error
