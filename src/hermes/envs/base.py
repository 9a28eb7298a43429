"""`BaseEnv`: what an environment overrides, and what it may rely on.

An environment says where its items come from (`setup`, `get_next_item`), how one is answered and scored
(`collect_trajectories`, or `collect_trajectory` for a single answer) and how it is evaluated (`evaluate`).
The same class then runs in three modes: `serve` feeds a trainer through the trajectory API, `process` writes
groups to a file, `evaluate` measures. Names, signatures and defaults are those of Atropos's BaseEnv, so that
an environment written for it runs unmodified; the work behind them is in the modules beside this one.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hermes.envs.config import BaseEnvConfig, config_class, fingerprint
from hermes.envs.failures import GroupTally
from hermes.envs.groups import GroupWriter, join_items
from hermes.envs.modes import checkpoint, group_worker, serve
from hermes.envs.modes import metrics as reporting
from hermes.envs.modes.api_session import ApiSession
from hermes.envs.servers.base import APIServer
from hermes.envs.servers.config import APIServerConfig, ReasoningConfig, ServerBaseline
from hermes.envs.servers.manager import ServerManager
from hermes.envs.types import Item, ScoredDataItem

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)


class BaseEnv(ABC):
    """The base of all environments."""

    name: str | None = None
    env_config_cls: ClassVar[Any] = BaseEnvConfig
    server_cls: ClassVar[Any] = APIServer

    def __init__(
        self,
        config: BaseEnvConfig,
        server_configs: ServerBaseline | list[APIServerConfig],
        slurm: bool = False,
        testing: bool = False,
    ) -> None:
        self.config = config
        self.server = ServerManager(
            server_configs,
            slurm=slurm,
            testing=testing,
            server_class=self.server_cls,
            reasoning_config=ReasoningConfig.from_env_config(config),
        )
        self.workers: set[asyncio.Task[Any]] = set()
        self.eval_workers: set[asyncio.Task[Any]] = set()
        self.eval_runner: asyncio.Task[None] | None = None
        self.backlog: list[Item] = []
        self.running_items: dict[str, dict[str, Any]] = {}
        self.last_completed_item: Item = None
        self.items_sent_this_step = 0
        self.curr_step = 0
        self.max_token_len = -1
        self.max_num_workers = self._most_workers()
        self.status_dict: dict[str, Any] = {}
        self.process_mode = False
        self.n_groups_to_process = config.total_steps
        self.group_size_to_process = config.group_size
        self.tally = GroupTally()
        self.retries: list[tuple[Item, int]] = []
        """Items to try again after an infrastructure failure, each with its tries so far."""
        self.dry_since_s: float | None = None
        """Since when get_next_item has had nothing; None if it had something the last time."""
        self.link: ApiSession | None = None
        """The standing with the trajectory API; None outside of serve."""
        self.jsonl_writer: GroupWriter | None = None
        if config.data_path_to_save_groups is not None:
            self.jsonl_writer = GroupWriter(config.data_path_to_save_groups)
        self._init_reports()

    def _init_reports(self) -> None:
        self.rollouts_for_wandb: list[list[tuple[Any, ...]]] = []
        self.completion_lengths: list[int] = []
        self.wandb_project: str | None = None
        self.wandb_group: str | None = None
        self.wandb_prepend: str | None = None
        self.checkpoint_dir = ""
        self.checkpoint_interval = -1
        self.workers_added_list: list[float] = []
        self.succeeded_task_duration: list[float] = []
        self.failed_task_duration: list[float] = []
        self.task_duration: list[float] = []
        self.mainloop_timings: list[float] = []
        self.task_successful: list[int] = []

    def _most_workers(self) -> int:
        if self.config.max_num_workers != -1:
            return self.config.max_num_workers
        return self.config.max_num_workers_per_node * max(1, len(self.server.servers))

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The policy's tokenizer, loaded when it is first needed."""
        if "_tokenizer" not in vars(self):
            from hermes.envs.tokenise import load_tokenizer

            self._tokenizer = load_tokenizer(self.config.tokenizer_name)
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer

    @property
    def display_name(self) -> str:
        return self.name or type(self).__name__

    @property
    def derived_batch_size(self) -> int:
        """The part of a batch that this environment can fill: its minimum, and what nobody has claimed."""
        if not self.status_dict or self.config.batch_size == -1:
            return self.config.batch_size
        open_share: float = self.status_dict.get("unallocated_fraction", 1.0)
        return int(self.config.batch_size * (open_share + (self.config.min_batch_allocation or 0.0)))

    @classmethod
    def config_init(cls) -> tuple[BaseEnvConfig, Any]:
        """The settings an environment starts from: its config, and one server or a list of them."""
        return config_class(cls)(), ServerBaseline()

    async def setup(self) -> None:  # noqa: B027 - an optional hook
        """Called once before anything else: load data here."""

    @abstractmethod
    async def get_next_item(self) -> Item:
        """The next item to roll out; None: there are no more."""

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        """Measures the policy; called every steps_per_eval steps and by the evaluate mode."""
        raise NotImplementedError(f"{type(self).__name__} has no evaluate method.")

    async def collect_trajectory(self, item: Item) -> tuple[ScoredDataItem | None, list[Item]]:
        """One scored answer, and items to roll out later."""
        raise NotImplementedError(
            f"{type(self).__name__} has neither collect_trajectory nor collect_trajectories."
        )

    async def collect_trajectories(self, item: Item) -> tuple[Any, list[Item]]:
        """A group of answers (or several groups), and items to roll out later.

        The default asks collect_trajectory group_size times at once. If any of them fails the group fails:
        one that is smaller, or padded, would be scored against the wrong baseline.
        """
        answers = await group_worker.all_or_error(
            [self.collect_trajectory(item) for _ in range(self.config.group_size)]
        )
        later = [item for _, items in answers for item in items]
        made = [answer for answer, _ in answers if answer is not None]
        return (join_items(made) if len(made) == len(answers) else None), later

    async def postprocess_histories(self, trajectories: Any) -> Any:
        """A last look at what collect_trajectories returned."""
        return trajectories

    async def cleanup(self) -> None:  # noqa: B027 - an optional hook
        """Called after each group."""

    async def close(self) -> None:  # noqa: B027 - an optional hook
        """Called at the end of a run."""

    def save_checkpoint(self, step: int, data: dict[str, Any] | None = None) -> None:
        """Keeps `data` beside the trainer's checkpoint; override to pass what must survive a restart."""
        if data is not None:
            name = self.wandb_prepend or self.display_name
            checkpoint.write(
                self.checkpoint_dir, name, step, data, fingerprint(self.config, type(self).__name__)
            )

    def load_checkpoint(self) -> None:
        """Sets the attributes that save_checkpoint kept at this step."""
        name = self.wandb_prepend or self.display_name
        kept = checkpoint.read(
            self.checkpoint_dir, name, self.curr_step, fingerprint(self.config, type(self).__name__)
        )
        for key, value in kept.items():
            setattr(self, key, value)

    async def setup_wandb(self) -> None:
        await serve.setup_wandb(self)

    async def register_env(self) -> None:
        await serve.register(self)

    async def get_server_info(self) -> None:
        await serve.read_info(self)

    async def get_status(self) -> None:
        await serve.read_status(self)

    async def env_step_checks(self) -> None:
        await serve.step_checks(self)

    async def add_train_workers(self) -> None:
        await serve.top_up(self)

    async def env_manager(self) -> None:
        """The serve mode."""
        await serve.run(self)

    async def process_manager(self) -> None:
        """The process mode."""
        from hermes.envs.modes import process

        await process.run(self)

    async def _run_evaluate(self) -> None:
        """The evaluate mode."""
        from hermes.envs.modes import evaluate

        await evaluate.run(self)

    async def handle_env(self, item_uuid: str) -> Any:
        """Makes and sends the group of one running item."""
        return await group_worker.handle(self, item_uuid)

    async def handle_send_to_api(
        self,
        scored_data: Any,
        item: Item = None,
        do_send_to_api: bool = True,
        abort_on_any_max_length_exceeded: bool = True,
    ) -> None:
        """Checks one group or a list of them, keeps the good ones and sends them."""
        await group_worker.keep_and_send(
            self, scored_data, item, do_send_to_api, abort_on_any_max_length_exceeded
        )

    async def _send_scored_data_to_api(self, scored_data: Any) -> None:
        if self.link is not None:
            await asyncio.shield(self.link.send(scored_data))

    def perf_stats(self, metrics_dict: dict[str, Any]) -> dict[str, Any]:
        return reporting.timings(self, metrics_dict)

    def check_settings(self) -> None:  # noqa: B027  a hook: most environments have nothing to check
        """Called once before the environment runs; raises where it cannot work as it is set up."""

    async def create_rollout_table(self, wandb_metrics: dict[str, Any]) -> dict[str, Any]:
        if (table := reporting.rollout_table(self)) is not None:
            wandb_metrics["train/rollouts"] = table
        return wandb_metrics

    async def add_rollouts_for_wandb(self, scored_data: Any, item: Item = None) -> None:
        """Keeps a few rollouts as text for W&B; where it is off, no tokenizer is loaded for that."""
        if not reporting.wandb_is_configured(self):
            return
        keep = self.config.num_rollouts_per_group_for_logging
        size = len(scored_data["tokens"])
        texts = [
            self.tokenizer.decode(ids) if len(ids) else reporting.conversation_text(scored_data, index)
            for index, ids in enumerate(scored_data["tokens"][: size if keep == -1 else keep])
        ]
        self.rollouts_for_wandb.append(list(zip(texts, scored_data["scores"], strict=False)))
        del self.rollouts_for_wandb[: -self.config.num_rollouts_to_keep]

    async def wandb_log(self, wandb_metrics: dict[str, Any] | None = None) -> None:
        """Reports at a step. Override to add metrics of your own, and call this at the end."""
        metrics = {**(wandb_metrics or {}), **reporting.completion_lengths(self)}
        metrics = self.perf_stats(await self.create_rollout_table(metrics))
        self.rollouts_for_wandb, self.completion_lengths = [], []
        if self.wandb_prepend is not None:
            metrics = {f"{self.wandb_prepend}_{name}": value for name, value in metrics.items()}
        for index, server in enumerate(self.server.servers):
            metrics |= await server.wandb_metrics({}, f"server_{index}")
        reporting.send_wandb(self, metrics)

    async def evaluate_log(
        self,
        metrics: dict[str, Any],
        task_name: str | None = None,
        model_name: str | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
        generation_parameters: dict[str, Any] | None = None,
        samples: list[dict[str, Any]] | None = None,
        verbose: bool = True,
    ) -> None:
        """Writes metrics.json and samples.jsonl to data_dir_to_save_evals, and prints a table."""
        from hermes.envs.modes import eval_log

        servers = [getattr(server, "config", None) for server in self.server.servers]
        asked = getattr(self.config, "model_name", None) or getattr(servers[0], "model_name", None)
        given = {"max_new_tokens": self.config.max_token_length, **(generation_parameters or {})}
        folder, task = self.config.data_dir_to_save_evals, task_name or f"{self.display_name}_eval"
        eval_log.evaluate_log(
            metrics, folder, task, model_name or asked, start_time, end_time, given, samples, verbose
        )

    @classmethod
    def cli(cls) -> None:
        """Runs `serve`, `process` or `evaluate` as the command line says, and ends the process."""
        from hermes.envs.cli.commandline import main

        main(cls)

    def spool_path(self) -> Path:
        """Where groups go that the trajectory API never took."""
        beside = self.config.data_path_to_save_groups or f"data/{self.display_name}.jsonl"
        return Path(beside).with_suffix(".unsent.jsonl")
