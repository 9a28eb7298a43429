"""JSON bodies of the Tinker API. Unknown fields are ignored; a missing one has the SDK's default."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Wire(BaseModel):
    model_config = ConfigDict(extra="ignore", protected_namespaces=(), allow_inf_nan=True)


class ConfigRequest(Wire):
    sdk_version: str = ""


class CreateSession(Wire):
    tags: list[str] = []
    user_metadata: dict[str, Any] | None = None
    sdk_version: str = ""
    project_id: str | None = None
    display_name: str | None = None


class SessionReference(Wire):
    session_id: str


class FinishReason(Wire):
    type: Literal["success", "errored", "interrupted"] = "success"


class FinishSession(Wire):
    reason: FinishReason = FinishReason()
    detail: str | None = None


class ProjectReference(Wire):
    project_id: str


class Telemetry(Wire):
    events: list[dict[str, Any]] = []
    sdk_version: str = ""


class Lora(Wire):
    rank: int
    seed: int | None = None
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True


class Optimizer(Wire):
    type: str = "adamw"


class CreateModel(Wire):
    session_id: str
    model_seq_id: int = Field(ge=0)
    base_model: str
    lora_config: Lora | None = None
    optimizer_config: Optimizer = Optimizer()
    user_metadata: dict[str, Any] | None = None


class ModelReference(Wire):
    model_id: str


class NumberedBody(ModelReference):
    """All other fields are in `model_extra`."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    seq_id: int


class Adam(Wire):
    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


class OptimStep(Wire):
    adam_params: Adam | None = None
    optimizer_params: Optimizer | None = None


class SaveWeights(Wire):
    path: str | None = None
    ttl_seconds: int | None = None
    overwrite: bool = False
    user_metadata: dict[str, str] | None = None


class SaveForSampler(SaveWeights):
    sampling_session_seq_id: int | None = None


class SaveExternal(SaveWeights):
    age_encryption_recipients: list[str] | None = None


class SessionAddress(Wire):
    session_id: str | None = None


class LoadWeights(Wire):
    path: str
    optimizer: bool = False


class CreateFrom(LoadWeights):
    """A load that also creates the model."""

    session_id: str
    model_seq_id: int = Field(ge=0)
    base_model: str | None = None
    user_metadata: dict[str, Any] | None = None
    optimizer_config: Optimizer = Optimizer()


class PathReference(Wire):
    tinker_path: str


class CopyWeights(Wire):
    source_path: str
    session_id: str | None = None
    model_seq_id: int | None = Field(default=None, ge=0)
    destination_project_id: str | None = None
    ttl_seconds: int | None = None


class Ttl(Wire):
    ttl_seconds: int | None = None


class CreateSampler(Wire):
    session_id: str
    sampling_session_seq_id: int = Field(ge=0)
    base_model: str | None = None
    model_path: str | None = None


class SamplerReference(Wire):
    sampling_session_id: str


class Chunk(Wire):
    type: str = "encoded_text"
    tokens: list[int] = []


class PromptBody(Wire):
    chunks: list[Chunk]


class SamplingParamsBody(Wire):
    max_tokens: int | None = None
    seed: int | None = None
    stop: str | list[str] | list[int] | None = None
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0


class JsonTensor(Wire):
    data: list[int] | list[float]
    dtype: Literal["float32", "int64"]
    shape: list[int] | None = None
    sparse_crow_indices: list[int] | None = None
    sparse_col_indices: list[int] | None = None


class Sample(Wire):
    sampling_session_id: str
    seq_id: int
    num_samples: int = 1
    prompt: PromptBody
    sampling_params: SamplingParamsBody = SamplingParamsBody()
    prompt_logprobs: bool | None = None
    topk_prompt_logprobs: int = 0
    topk_sample_logprobs: int = 0
    target_prompt_logprobs: JsonTensor | None = None
    prompt_alt_tokens_k: int = 0
    prompt_logprobs_last_n: int | None = None


class RetrieveFuture(Wire):
    request_id: str
    allow_metadata_only: bool = False


class RequestReference(Wire):
    request_id: str


class SearchCursor(Wire):
    last_session_id: str


class StatusQuery(Wire):
    type: str
    reasons: list[str] | None = None


class SearchSessions(Wire):
    session_id: str | None = None
    project_ids: list[str] | None = None
    user_metadata: dict[str, str] = {}
    display_name: str | None = None
    statuses: list[StatusQuery] | None = None
    limit: int = Field(default=50, ge=1, le=200)
    cursor: SearchCursor | None = None
