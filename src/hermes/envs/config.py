"""An environment's settings: Atropos's names and defaults, and how long Hermes waits for other processes.

The constructor ignores unknown keys, as Atropos's does; the command line rejects them, in flags and in files.
"""

from __future__ import annotations

import hashlib
import json
from enum import Enum
from typing import Any

from pydantic import BaseModel, Field


class EvalHandlingEnum(Enum):
    """How training goes on while an evaluation runs. Groups in progress are finished in any case."""

    STOP_TRAIN = "STOP_TRAIN"
    LIMIT_TRAIN = "LIMIT_TRAIN"
    NONE = "NONE"


class BaseEnvConfig(BaseModel):
    """Environments add fields by deriving from it."""

    group_size: int = Field(default=4, ge=1, description="Answers to one item, scored together.")
    max_num_workers: int = Field(
        default=-1, description="Most groups in progress; -1: max_num_workers_per_node for each server."
    )
    max_eval_workers: int = Field(default=16, description="Most evaluation samples in progress.")
    max_num_workers_per_node: int = Field(default=8, description="Groups in progress for each server.")
    steps_per_eval: int = Field(default=100, description="Steps between two evaluations.")
    max_token_length: int = Field(default=2048, description="Longest generation, in tokens.")
    eval_handling: EvalHandlingEnum = Field(
        default=EvalHandlingEnum.STOP_TRAIN, description="What training does during an evaluation."
    )
    eval_limit_ratio: float = Field(
        default=0.5, description="Share of the workers that run during LIMIT_TRAIN."
    )
    inference_weight: float = Field(
        default=1.0,
        description="Share of the model servers, relative to other environments; -1: not counted.",
    )
    batch_size: int = Field(default=-1, description="Sequences in a batch; the trainer's, once it is known.")
    max_batches_offpolicy: int = Field(
        default=3, description="Most batches queued for the trainer; with more the environment pauses."
    )
    synchronous: bool = Field(
        default=False,
        description="Sample a batch only while the trainer waits for it, with the newest weights: on-policy, "
        "and with a seed the same run every time. Sampling and training then do not overlap.",
    )
    tokenizer_name: str = Field(
        default="NousResearch/DeepHermes-3-Llama-3-3B-Preview",
        description="Hub name or folder of the policy's tokenizer, or hermes/smollm2.",
    )
    use_wandb: bool = Field(
        default=True,
        description="Report to W&B, where a key or WANDB_MODE is set; otherwise nothing is sent.",
    )
    sampling_seed: int | None = Field(
        default=None,
        description="Agent rollouts are sampled with seeds made of it, the task, the attempt and the sample; "
        "none: random. A run sets it to its own seed.",
    )
    rollout_server_url: str = Field(default="http://localhost:8000", description="The trajectory API.")
    total_steps: int = Field(default=1000, description="Steps to serve, groups to write; -1: the trainer's.")
    wandb_name: str | None = Field(
        default=None, description="Name to register under; none: the class's name."
    )
    num_rollouts_to_keep: int = Field(default=32, description="Groups kept for display.")
    num_rollouts_per_group_for_logging: int = Field(
        default=1, description="Answers of a group kept for display; -1: all."
    )
    ensure_scores_are_not_same: bool = Field(
        default=True,
        description="Reject groups whose scores are all equal and that have no token advantages: they have "
        "no training signal.",
    )
    data_path_to_save_groups: str | None = Field(default=None, description="Write every group to this JSONL.")
    data_dir_to_save_evals: str | None = Field(default=None, description="Write evaluation results here.")
    min_items_sent_before_logging: int = Field(
        default=2, description="Groups sent before metrics are logged at a step."
    )
    include_messages: bool = Field(default=False, description="Send messages along with the tokens.")
    min_batch_allocation: float | None = Field(
        default=None, ge=0, le=1, description="Least share of each batch for this environment."
    )
    max_failed_groups: int = Field(
        default=16, ge=1, description="Groups in a row that may fail before the run ends."
    )
    worker_timeout: float = Field(default=600, description="Seconds a group may take; 0 or less: no limit.")
    thinking_mode: bool = Field(default=False, description="Request reasoning from chat models.")
    reasoning_effort: str | None = Field(
        default=None, description="none, minimal, low, medium, high or xhigh."
    )
    max_reasoning_tokens: int | None = Field(
        default=None, ge=1024, le=32000, description="Most tokens of reasoning."
    )
    custom_thinking_prompt: str | None = Field(
        default=None, description="System prompt added before the conversation in thinking mode."
    )
    start_patience_s: float = Field(
        default=60, description="Seconds to wait at the start for the model server and the trajectory API."
    )
    outage_patience_s: float = Field(
        default=600, description="Seconds to wait for a model server or API that stops responding."
    )
    trainer_patience_s: float = Field(
        default=7200, description="Seconds to wait for a trainer that takes no batch."
    )
    stop_patience_s: float = Field(
        default=20, description="Seconds that groups in progress have after a signal, and their delivery."
    )


_RUNTIME_ONLY = frozenset(
    {
        "batch_size",
        "synchronous",
        "total_steps",
        "data_path_to_save_groups",
        "data_dir_to_save_evals",
        "rollout_server_url",
        "use_wandb",
        "max_num_workers",
        "max_num_workers_per_node",
        "max_failed_groups",
        "max_eval_workers",
        "start_patience_s",
        "outage_patience_s",
        "trainer_patience_s",
        "stop_patience_s",
    }
)
"""Settings that may change when a run is resumed: they do not affect the groups."""


def config_class(environment: Any) -> Any:
    """The class of an environment's settings. Some files define it only by a method `config_cls`."""
    method = getattr(environment, "config_cls", None)
    if environment.env_config_cls is BaseEnvConfig and callable(method):
        return method()
    return environment.env_config_cls


def fingerprint(config: BaseEnvConfig, *more: str) -> str:
    """Identifies the settings that affect the groups of a run."""
    settings = config.model_dump(mode="json", exclude=set(_RUNTIME_ONLY), fallback=str)
    return hashlib.sha256(json.dumps([settings, *more], sort_keys=True).encode()).hexdigest()
