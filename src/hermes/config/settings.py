"""The settings model: every key of config.yaml, its type, default and meaning.

Unknown keys are refused by name. Secrets are not settings: API keys live in the environment or in
`.env`, and settings only name the variable that holds one.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from hermes.core.json import JSON

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
ALERT_RULE = re.compile(
    r"\s*([A-Za-z][\w./-]*)\s*(<=|>=|<|>)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)(?:\s+for\s+([1-9]\d{0,5}))?\s*"
)
"""METRIC < VALUE, with `<=`, `>` or `>=`, and `for STEPS`."""
LOCAL = "local"
"""The base URL of a model that runs in this process."""
MANAGED = "managed"
"""Instead of an address: the service that the Tinker SDK connects to by default."""
ParserName: TypeAlias = Literal[
    "hermes",
    "qwen",
    "longcat",
    "llama3_json",
    "llama4_json",
    "mistral",
    "mistral_v11",
    "deepseek_v3",
    "deepseek_v3_1",
    "deepseek_v31",
    "kimi_k2",
    "qwen3_coder",
    "glm45",
    "glm47",
]
"""The names that `models.parsers.get_parser` accepts; its test holds them equal."""
ReasoningEffort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra"]


def http_url(value: str) -> str:
    """The address without a trailing slash; else ValueError."""
    try:
        parts = urlsplit(value)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, a broken IPv6 address
        usable = False
    if not usable or not value.isprintable() or " " in value:
        raise ValueError("an address such as http://127.0.0.1:8000/v1")
    return value.rstrip("/")


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ProviderSettings(_Section):
    base_url: str = Field(description="OpenAI-compatible base URL; 'local' runs in this process")
    key_env: str | None = Field(default=None, description="environment variable that holds the API key")
    parser: ParserName | None = Field(
        default=None,
        description="tool-call parser for servers that return plain text; unset: the server parses",
    )
    max_concurrency: int = Field(
        default=100, ge=1, description="ceiling of the adaptive limit on calls in flight"
    )
    timeout_s: float = Field(default=600.0, gt=0, description="longest a single call may take")
    max_retries: int = Field(default=5, ge=0, description="retries of one call after a retryable failure")
    send_reasoning: bool = Field(
        default=False,
        description="send the assistant's earlier thinking back to the server (reasoning_content)",
    )
    extra_body: dict[str, JSON] = Field(
        default_factory=dict, description="server-specific fields added to every request"
    )
    toolsets: tuple[str, ...] | None = Field(
        default=None, description="offered in place of the default toolsets; a small model is lost among many"
    )

    @field_validator("base_url")
    @classmethod
    def _check_base_url(cls, value: str) -> str:
        return value if value == LOCAL else http_url(value)

    @field_validator("key_env")
    @classmethod
    def _check_key_env(cls, value: str | None) -> str | None:
        if value is not None and not _VARIABLE.fullmatch(value):
            raise ValueError("the name of a variable (the key itself belongs in .env)")
        return value


class SamplingSettings(_Section):
    temperature: float | None = Field(default=None, ge=0, description="unset: the server's default")
    top_p: float | None = Field(
        default=None, gt=0, le=1, description="sample among the likeliest tokens with this share together"
    )
    top_k: int | None = Field(default=None, ge=1, description="sample among this many likeliest tokens")
    max_tokens: int | None = Field(default=None, ge=1, description="longest completion of one call")
    reasoning_effort: ReasoningEffort | None = Field(
        default=None,
        description="sent to models that think: none, minimal, low, medium, high, xhigh, max or ultra",
    )


class LimitSettings(_Section):
    max_turns: int = Field(
        default=30, ge=1, description="model calls in one trajectory (per user turn in chat)"
    )
    max_tokens: int | None = Field(
        default=None, ge=1, description="prompt + completion tokens of one trajectory"
    )
    max_cost_usd: float | None = Field(default=None, gt=0, description="refuses models with an unknown price")
    timeout_s: float | None = Field(default=None, gt=0, description="wall clock of one trajectory")


class SandboxSettings(_Section):
    backend: str = Field(
        default="auto",
        description="auto, local, bubblewrap, docker, or a plug-in's name. auto: local for interactive "
        "chat; otherwise bubblewrap, docker, or refuse",
    )
    network: bool = Field(
        default=False,
        description="allow public addresses inside an isolating sandbox; needs pasta or slirp4netns",
    )
    network_allow: tuple[str, ...] = Field(
        default=(),
        description="private IPv4 addresses and blocks that sandbox.network reaches too; host: no namespace, "
        "but this machine's own network with its loopback (docker: the engine's bridge)",
    )
    image: str = Field(default="python:3.11-slim", description="container image for docker")
    memory_mb: int = Field(default=2048, ge=64, description="memory of the commands of one sandbox")
    disk_mb: int = Field(
        default=10_240, ge=16, description="disk space of a workspace that an isolating sandbox made"
    )
    max_processes: int = Field(default=256, ge=8, description="processes and threads at one time")
    cpu_s: int = Field(default=600, ge=1, description="CPU seconds one command may use")
    command_timeout_s: float = Field(
        default=120.0, gt=0, description="wall clock of one command in the foreground"
    )


class ApprovalSettings(_Section):
    allow: tuple[str, ...] = Field(
        default=(), description="extra command patterns that need no question (argv globs)"
    )
    deny: tuple[str, ...] = Field(default=(), description="command patterns that are always refused")


class WebSettings(_Section):
    search_backend: Literal["auto", "searxng", "brave", "tavily"] = Field(
        default="auto", description="auto: the first of them that has an address or a key"
    )
    searxng_url: str | None = Field(default=None, description="address of a SearXNG server of yours")
    allow_hosts: tuple[str, ...] = Field(
        default=(), description="hosts (name or name:port) exempt from the private-address guard"
    )
    max_bytes: int = Field(default=5_000_000, ge=1, description="largest page web_extract downloads")

    @field_validator("searxng_url")
    @classmethod
    def _check_searxng_url(cls, value: str | None) -> str | None:
        return value if value is None else http_url(value)


class HubSettings(_Section):
    """Where datasets are looked at. HF_TOKEN is sent to these two addresses and to no other."""

    url: str = Field(default="https://huggingface.co", description="the hub")
    viewer_url: str = Field(
        default="https://datasets-server.huggingface.co", description="the hub's dataset viewer"
    )

    @field_validator("url", "viewer_url")
    @classmethod
    def _check_address(cls, value: str) -> str:
        return http_url(value)


class MemorySettings(_Section):
    enabled: bool = Field(
        default=True, description="whether interactive chat has a memory; batch and environments never do"
    )
    max_facts: int = Field(default=40, ge=1, le=1_000, description="facts that are kept at one time")
    max_fact_chars: int = Field(default=300, ge=20, le=4_000, description="longest fact")


class SkillSettings(_Section):
    auto: Literal["off", "suggest"] = Field(
        default="off", description="suggest: a chat that took many corrections ends with a draft of a skill"
    )
    corrections: int = Field(
        default=3, ge=1, description="failed calls and added messages after which a skill is suggested"
    )


class MediaSettings(_Section):
    vision_model: str | None = Field(default=None, description="provider/model that understands images")
    image_model: str | None = Field(default=None, description="provider/model that draws images")


class RatingSettings(_Section):
    """A machine that rates every new chat, query and batch run when it ends; name one, or none."""

    judge: str | None = Field(default=None, description="chat model that is asked for 1 to 5")
    reward: str | None = Field(default=None, description="reward function, as FILE.py:FUNCTION")
    reward_model: str | None = Field(default=None, description="address of 'hermes reward serve'")
    rubric: str | None = Field(default=None, description="what the judge is to look at")

    @property
    def raters(self) -> tuple[str, ...]:
        """The fields that name a rater."""
        return tuple(name for name in ("judge", "reward", "reward_model") if getattr(self, name))


class McpServerSettings(_Section):
    command: str | None = Field(default=None, description="program of a stdio server")
    args: tuple[str, ...] = Field(default=(), description="arguments of the command")
    env: dict[str, str] = Field(
        default_factory=dict, repr=False, description="its variables; ${NAME} takes a stored value"
    )
    url: str | None = Field(default=None, description="address of an HTTP server; exclusive with command")
    timeout_s: float = Field(default=60.0, gt=0, description="longest a call of one of its tools may take")

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: str | None) -> str | None:
        return value if value is None else http_url(value)

    @model_validator(mode="after")
    def _check_transport(self) -> McpServerSettings:
        if (self.command is None) == (self.url is None):
            raise ValueError("either a command or a url")
        return self


class PriceSettings(_Section):
    """US dollars per million tokens."""

    input: float = Field(ge=0, description="USD for a million prompt tokens")
    output: float = Field(ge=0, description="USD for a million completion tokens")
    cached_input: float | None = Field(default=None, ge=0, description="unset: the input price")
    cache_write: float | None = Field(default=None, ge=0, description="unset: the input price")


class ServicePrice(_Section):
    """Prices of a Tinker service, in US dollars per million tokens."""

    prefill: float = Field(ge=0, description="of prompts and scored sequences")
    sample: float = Field(ge=0)
    train: float = Field(ge=0)


class RlSettings(_Section):
    """RL runs. The agent's tools read this and never write it."""

    model: str = Field(default="hermes/smollm2", description="base model: bundled, hub name or folder")
    models: tuple[str, ...] = Field(
        default=(), description="more base models that the agent may choose to train; unset: only rl.model"
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="where a run's engine computes"
    )
    environments: tuple[str, ...] = Field(default=(), description="more folders with environments")
    service: str | None = Field(
        default=None,
        description="Tinker service to train with: an address, or 'managed'; unset: TINKER_BASE_URL, else an "
        "engine of the run's own",
    )
    values: dict[str, JSON] = Field(
        default_factory=dict, description="field → value in place of the recipe's, locked ones included"
    )
    unlock: tuple[str, ...] = Field(default=(), description="locked fields that the agent may edit")
    max_steps: int | None = Field(
        default=None, ge=1, description="most steps of all runs that the agent starts in one task"
    )
    max_hours: float | None = Field(default=None, gt=0, description="longest they may run, together")
    max_usd: float | None = Field(
        default=None, gt=0, description="most they and its tests may cost; refuses what has no known price"
    )
    price: ServicePrice | None = Field(default=None, description="of the service")
    alerts: tuple[str, ...] = Field(
        default=("health/forbidden_paths > 0", "proof/warning > 0"),
        description="rules on the metrics of runs, such as 'kl/reference > 0.5 for 3'",
    )

    @field_validator("service")
    @classmethod
    def _check_service(cls, value: str | None) -> str | None:
        return value if value in (None, MANAGED) else http_url(value)

    @field_validator("alerts")
    @classmethod
    def _check_alerts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for rule in value:
            if not ALERT_RULE.fullmatch(rule):
                raise ValueError(f"rules such as 'kl/reference > 0.5'; '{rule[:80]}' is none")
        return value


class Settings(_Section):
    model: str = Field(default="hermes/smollm2", description="default model, as provider/name")
    model_aliases: dict[str, str] = Field(
        default_factory=dict,
        description="names of your own for models: name → provider/name, policy or run:RUN",
    )
    providers: dict[str, ProviderSettings] = Field(
        default_factory=dict, description="further model servers, and changes to the known ones"
    )
    sampling: SamplingSettings = SamplingSettings()
    limits: LimitSettings = LimitSettings()
    toolsets: tuple[str, ...] = Field(
        default=(
            "terminal",
            "file",
            "web",
            "code_execution",
            "skills",
            "todo",
            "session_search",
            "memory",
            "datasets",
            "clarify",
            "delegation",
        ),
        description="toolsets offered in chat and queries",
    )
    distributions: dict[str, dict[str, int]] = Field(
        default_factory=dict, description="own toolset distributions: name → toolset → percent"
    )
    skill_list: Literal["auto", "all", "search"] = Field(
        default="auto",
        description="skills in the system prompt: all (a line each), search (one line), or auto: search for "
        "names of less than 10B parameters",
    )
    system_prompt: str | None = Field(default=None, description="replaces the built-in system prompt")
    sandbox: SandboxSettings = SandboxSettings()
    approval: ApprovalSettings = ApprovalSettings()
    web: WebSettings = WebSettings()
    hub: HubSettings = HubSettings()
    memory: MemorySettings = MemorySettings()
    skills: SkillSettings = SkillSettings()
    media: MediaSettings = MediaSettings()
    rating: RatingSettings = RatingSettings()
    mcp_servers: dict[str, McpServerSettings] = Field(
        default_factory=dict, description="MCP servers whose tools the agent may call"
    )
    prices: dict[str, PriceSettings] = Field(
        default_factory=dict, description="prices by provider/name, for costs and limits.max_cost_usd"
    )
    rl: RlSettings = RlSettings()
