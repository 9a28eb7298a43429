"""The settings of an agent environment: hermes-agent's names and defaults, beside those of BaseEnv."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from hermes.envs.config import BaseEnvConfig
from hermes.safety.forbidden import DEFAULT_FORBIDDEN


class HermesAgentEnvConfig(BaseEnvConfig):
    enabled_toolsets: list[str] | None = Field(
        default=None, description="Toolsets offered to the agent; none: the environment's default_toolsets."
    )
    disabled_toolsets: list[str] | None = Field(default=None, description="Toolsets never offered.")
    distribution: str | None = Field(
        default=None, description="Draw the toolsets from this distribution, once for each group."
    )
    max_agent_turns: int = Field(default=30, ge=1, description="Most model calls of one rollout.")
    system_prompt: str | None = Field(default=None, description="System prompt; none: no system message.")
    texts: dict[str, str] = Field(
        default_factory=dict,
        description="Texts of a policy by name (system_prompt, tool:NAME, …), around the model in every "
        "rollout; a run that starts from a policy has the policy's.",
    )
    agent_temperature: float = Field(default=1.0, ge=0, description="Sampling temperature in training.")
    terminal_backend: str = Field(
        default="local",
        description="Where commands run: bubblewrap, docker or a plug-in's name; local: on this machine, in "
        "the configured sandbox.backend, which isolates unless it was set to local.",
    )
    terminal_timeout: int = Field(default=120, gt=0, description="Seconds one command may take.")
    terminal_lifetime: int = Field(default=3600, gt=0, description="Seconds one rollout may take.")
    dataset_name: str | None = Field(
        default=None, description="Tasks: a JSONL file, or the name of a dataset on the hub."
    )
    dataset_split: str = Field(default="train", description="Split of the hub's dataset.")
    prompt_field: str = Field(default="prompt", description="Field of a task that holds its prompt.")
    shuffle: bool = Field(
        default=True,
        description="Take the tasks of a file or folder in another order in each pass, drawn by "
        "sampling_seed; false: in their own order.",
    )
    tool_pool_size: int = Field(default=128, ge=1, description="Most rollouts in progress at the same time.")
    tool_call_parser: str = Field(
        default="hermes", description="Format of tool calls in the text of servers that return tokens."
    )
    default_result_size_chars: int = Field(
        default=100_000, ge=1, description="Longest tool result shown whole; a longer one is saved to a file."
    )
    turn_budget_chars: int = Field(
        default=200_000, ge=1, description="Most characters of results shown in one turn, all tools together."
    )
    preview_size_chars: int = Field(
        default=1500, ge=1, description="Characters shown of a result that is saved."
    )
    tool_result_overrides: dict[str, int] | None = Field(
        default=None, description="Tool → longest result shown whole, instead of the default."
    )
    forbidden_paths: list[str] = Field(
        default=[*DEFAULT_FORBIDDEN],
        description="Paths that no task needs (/tests/**, conftest.py): rollouts whose tool calls name one "
        "are counted in health/forbidden_paths.",
    )
    extra_body: dict[str, Any] | None = Field(
        default=None, description="Fields added to every request to the model server."
    )

    @field_validator("tool_call_parser")
    @classmethod
    def _known_parser(cls, value: str) -> str:
        from hermes.errors import UsageError
        from hermes.models.parsers import get_parser

        try:
            get_parser(value)
        except UsageError as error:
            raise ValueError(f"{error.message} {error.hint}") from error
        return value

    @field_validator("enabled_toolsets", "disabled_toolsets")
    @classmethod
    def _known_toolsets(cls, value: list[str] | None) -> list[str] | None:
        from hermes.errors import UsageError
        from hermes.tools.registry import check_toolset

        for name in value or ():
            try:
                check_toolset(name)
            except UsageError as error:
                raise ValueError(f"{error.message}; {error.hint}") from error
        return value

    def overrides(self) -> dict[str, Any]:
        """These settings under Hermes's own keys."""
        overrides: dict[str, Any] = {
            "limits.max_turns": self.max_agent_turns,
            "limits.timeout_s": float(self.terminal_lifetime),
            "sandbox.command_timeout_s": float(self.terminal_timeout),
        }
        if self.terminal_backend != "local":
            overrides["sandbox.backend"] = self.terminal_backend
        return overrides
