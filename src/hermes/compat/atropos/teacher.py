"""Environments that add a teacher model's top logprobs at each position to their groups."""

from __future__ import annotations

import logging
from typing import Any

from pydantic import Field

from hermes.envs.base import BaseEnv
from hermes.envs.concurrency import gather_or_cancel
from hermes.envs.config import BaseEnvConfig
from hermes.envs.servers.config import APIServerConfig
from hermes.envs.servers.manager import ServerManager
from hermes.envs.types import Item
from hermes.errors import ConfigError

logger = logging.getLogger(__name__)


class TeacherDistillationConfig(BaseEnvConfig):
    teacher_enabled: bool = Field(default=False, description="Get the teacher's logprobs of every sequence.")
    teacher_top_k: int = Field(
        default=0, description="Number of top tokens at each position; -1: no requests to the teacher."
    )


class TeacherDistillationEnv(BaseEnv):
    """Fills distill_token_ids and distill_logprobs.

    The teacher is configured by `teacher_config_init`, `teacher` in the --config file and --teacher.*
    flags. If a request to the teacher fails, the group is sent without these fields.
    """

    env_config_cls = TeacherDistillationConfig
    config: TeacherDistillationConfig

    def __init__(
        self,
        config: TeacherDistillationConfig,
        server_configs: Any,
        teacher_server_configs: Any = None,
        slurm: bool = False,
        testing: bool = False,
    ) -> None:
        super().__init__(config, server_configs, slurm=slurm, testing=testing)
        self.teacher_server: ServerManager | None = None
        if config.teacher_enabled:
            if not teacher_server_configs:
                raise ConfigError(
                    "teacher_enabled is set, but there is no teacher.",
                    "Set --teacher.base_url and its model.",
                )
            self.teacher_server = ServerManager(teacher_server_configs)
            self._check_tokenizers()

    @classmethod
    def teacher_config_init(cls) -> Any:
        """The default server of the teacher; None: it is configured by file and flags only."""
        return APIServerConfig()

    def _check_tokenizers(self) -> None:
        """ConfigError unless the teacher uses the policy's token ids."""
        assert self.teacher_server is not None, "called when there is a teacher"
        teacher = self.teacher_server.servers[0]
        if getattr(teacher, "tokenizer", None) is None:
            raise ConfigError(
                "the teacher's server returns no prompt logprobs.",
                "Set --teacher.server_type to sglang or vllm.",
            )
        if teacher.tokenizer.get_vocab() != self.tokenizer.get_vocab():
            raise ConfigError("the teacher's tokenizer differs from the policy's.")

    async def handle_send_to_api(
        self,
        scored_data: Any,
        item: Item = None,
        do_send_to_api: bool = True,
        abort_on_any_max_length_exceeded: bool = True,
    ) -> None:
        for group in scored_data if isinstance(scored_data, list) else [scored_data]:
            if group is not None:
                await self._add_teacher_logprobs(group)
        await super().handle_send_to_api(scored_data, item, do_send_to_api, abort_on_any_max_length_exceeded)

    async def _add_teacher_logprobs(self, group: dict[str, Any]) -> None:
        group["distill_token_ids"] = group["distill_logprobs"] = None
        overrides = group.get("group_overrides") or {}
        top_k = int(overrides.get("teacher_top_k", self.config.teacher_top_k))
        if self.teacher_server is None or overrides.get("skip_teacher_top_k") or top_k < 0:
            return
        get_logprobs = self.teacher_server.get_logprobs
        try:
            logprobs = await gather_or_cancel(
                [get_logprobs(input_ids=ids, top_k=top_k) for ids in group["tokens"]]
            )
        except Exception:  # the group can be trained on without it
            logger.exception("the request to the teacher failed; the group is sent without its logprobs")
            return
        group["distill_token_ids"] = [sequence["prompt_topk_token_ids"] for sequence in logprobs]
        group["distill_logprobs"] = [sequence["prompt_topk_logprobs"] for sequence in logprobs]
