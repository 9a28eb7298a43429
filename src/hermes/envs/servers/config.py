"""The settings of inference servers and of reasoning requests.

Names and defaults are Atropos's, because configuration files and `config_init` methods written for it use
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from hermes.envs.config import BaseEnvConfig

REASONING_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")


class ServerBaseline(BaseModel):
    """The settings that all servers of an environment share; their addresses follow a convention."""

    model_config = ConfigDict(protected_namespaces=())

    timeout: int = Field(default=1200, description="Seconds a request may take.")
    num_max_requests_at_once: int = Field(default=512, description="Most requests at once for training.")
    num_requests_for_eval: int = Field(default=64, description="Most requests at once for evaluation.")
    model_name: str = Field(default="default", description="Name of the model.")
    rolling_buffer_length: int = Field(default=1000, description="Most request timings kept for metrics.")
    server_type: Literal["openai", "sglang", "vllm"] = Field(
        default="openai", description="Protocol of the server for tokens and logprobs."
    )
    tokenizer_name: str = Field(default="none", description="Tokenizer of the model; none: model_name.")


class APIServerConfig(ServerBaseline):
    """One server."""

    api_key: str | None = Field(default="", description="API key of the server.")
    base_url: str | None = Field(default="", description="Address, ending in /v1.")
    n_kwarg_is_ignored: bool = Field(
        default=False, description="The server ignores n and returns one choice."
    )
    health_check: bool = Field(default=True, description="Probe the server before using it.")


class ServerManagerConfig(BaseModel):
    slurm: bool = Field(default=False, description="Find the servers on the nodes of this Slurm job.")
    testing: bool = Field(
        default=False, description="No server is asked: for tests of an environment's own code."
    )
    max_n_completions: int = Field(default=8, description="Largest n of one request; more are split.")
    proxy_url: str | None = Field(default=None, description="OpenAI proxy in front of the managed server.")


@dataclass
class ReasoningConfig:
    """Whether and how much a chat model is to reason."""

    enabled: bool = False
    effort: str | None = None
    max_tokens: int | None = None

    EFFORT_TO_MAX_TOKENS: ClassVar[dict[str, int]] = {
        "none": 1024,
        "minimal": 3200,
        "low": 6400,
        "medium": 16000,
        "high": 25600,
        "xhigh": 30400,
    }

    def __post_init__(self) -> None:
        if self.effort is not None and self.effort not in REASONING_EFFORTS:
            raise ValueError(
                f"reasoning_effort is '{self.effort}'; it can be {', '.join(REASONING_EFFORTS)}."
            )
        self.enabled = self.enabled or self.effort is not None or self.max_tokens is not None

    @classmethod
    def from_env_config(cls, config: BaseEnvConfig) -> ReasoningConfig:
        return cls(config.thinking_mode, config.reasoning_effort, config.max_reasoning_tokens)

    def is_reasoning_kwargs_active(self) -> bool:
        return self.enabled

    def build_extra_body(
        self, base_url: str | None = None, use_max_tokens: bool = False
    ) -> dict[str, Any] | None:
        """The extra fields of a chat request; None without reasoning."""
        if not self.enabled:
            return None
        if is_openai_itself(base_url):
            return {"reasoning_effort": self.effort or "medium"}
        reasoning: dict[str, Any] = {"enabled": True}
        if self.effort is not None and use_max_tokens:
            reasoning["max_tokens"] = self.EFFORT_TO_MAX_TOKENS[self.effort]
        elif self.effort is not None:
            reasoning["effort"] = self.effort
        elif self.max_tokens is not None:
            reasoning["max_tokens"] = self.max_tokens
        return {"reasoning": reasoning}


def is_openai_itself(base_url: str | None) -> bool:
    """True for OpenAI's own API, which takes reasoning settings in another form."""
    return base_url is not None and "api.openai.com" in base_url
