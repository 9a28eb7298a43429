"""The settings of an environment of verifiers, beside those that every environment has."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from hermes.envs.config import BaseEnvConfig


class VerifiersEnvConfig(BaseEnvConfig):
    package: str = Field(
        default="", description="The environment's package, as verifiers names it: reverse-text."
    )
    args: dict[str, Any] = Field(
        default_factory=dict,
        description="Its own settings: fields of its EnvConfig ({taskset: {…}, agent: {…}}), or the "
        "arguments of its load_environment.",
    )
    verifiers_python: str | None = Field(
        default=None,
        description="The interpreter that has verifiers; none: the one of 'hermes env verifiers install'.",
    )
    harness: str | None = Field(
        default=None,
        description="Harness of roles without one; none: the package's, else null.",
    )
    runtime: str = Field(
        default="subprocess", description="Where harnesses run: subprocess, docker, podman, apptainer …"
    )
    allow_local_commands: bool = Field(
        default=False, description="A harness may run the model's commands on this machine, unisolated."
    )
    max_turns: int = Field(default=16, ge=1, description="Most model calls of a rollout.")
    temperature: float = Field(default=1.0, ge=0, description="Sampling temperature in training.")
    eval_tasks: int = Field(
        default=32, ge=0, description="Tasks held out for evaluation; at most a quarter of a finite taskset."
    )
    eval_temperature: float = Field(default=0.0, ge=0, description="Sampling temperature in evaluations.")
    tool_call_parser: str = Field(
        default="hermes", description="Format of tool calls in the text of servers that return tokens."
    )
