"""`BaseEnv`: what an environment overrides, and what it may rely on.

An environment defines where its items come from (`setup`, `get_next_item`), how an item is answered and
scored (`collect_trajectories`, or `collect_trajectory` for a single answer) and how it is evaluated
(`evaluate`). The same class then runs in three modes: `serve` feeds a trainer through the trajectory API,
`process` writes groups to a file, `evaluate` measures the policy. Names, signatures and defaults are those of
Atropos's BaseEnv, so that an environment written for it runs unmodified.

The class holds what is the author's. The state of a run belongs to `modes.runner.EnvRunner` and
`modes.serve.ServeMode`; the attributes of it that Atropos's environments use are properties here.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from hermes.envs.concurrency import gather_or_cancel
from hermes.envs.config import BaseEnvConfig, config_class, fingerprint
from hermes.envs.groups import join_items
from hermes.envs.modes import checkpoint, metrics, pacing, process
from hermes.envs.modes.runner import EnvRunner
from hermes.envs.modes.serve import ServeMode
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
    eval_attributes: Sequence[str] = (
        "eval_metrics",
        "eval_metrics_custom",
        "eval_scores_buffer",
        "eval_stats",
    )
    """Numbers and containers in which `evaluate` leaves results for `wandb_log`. During training an
    evaluation has its own copy of all others. The default: the names that Atropos's environments use."""
    _tokenizer: PreTrainedTokenizerBase | None = None

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
        self.server_configs: list[Any] = (
            server_configs if isinstance(server_configs, list) else [server_configs]
        )
        """As the constructor received them, in a list."""
        self.rollouts_for_wandb: list[list[tuple[Any, ...]]] = []
        """Groups of (text, score) for the next report to W&B."""
        self.completion_lengths: list[int] = []
        """Trained tokens of the sequences since the last report."""
        self.secret_seed: int | None = None
        """Set by serve before `setup`, for training items that a policy cannot generate again; else None."""
        self._env_runner = EnvRunner(self)
        self._serve_mode = ServeMode(self._env_runner)

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The policy's tokenizer, loaded on first use."""
        if self._tokenizer is None:
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
        """The part of a batch that this environment can fill, in sequences."""
        return pacing.batch_share(self.config, self.status_dict)

    @property
    def curr_step(self) -> int:
        """The trainer's step; in the process mode, the items written."""
        return self._env_runner.curr_step

    @property
    def status_dict(self) -> Mapping[str, Any]:
        """The trajectory API's last response to /status-env."""
        return self._serve_mode.status

    @property
    def wandb_prepend(self) -> str | None:
        """The name that the trajectory API assigned to this environment; None before it is registered."""
        return self._serve_mode.membership.wandb_name

    @property
    def checkpoint_dir(self) -> str:
        return self._serve_mode.membership.checkpoint_dir

    @property
    def checkpoint_interval(self) -> int:
        return self._serve_mode.membership.checkpoint_interval

    @property
    def max_token_len(self) -> int:
        """The trainer's limit on the length of a sequence; -1: unknown."""
        return self._env_runner.max_token_len

    @max_token_len.setter
    def max_token_len(self, max_tokens: int) -> None:
        self._env_runner.max_token_len = max_tokens

    @property
    def process_mode(self) -> bool:
        """Whether groups are written to a file instead of being sent to a trainer."""
        return self._env_runner.process_mode

    @process_mode.setter
    def process_mode(self, enabled: bool) -> None:
        self._env_runner.process_mode = enabled

    @property
    def items_sent_this_step(self) -> int:
        return self._env_runner.items_sent_this_step

    @items_sent_this_step.setter
    def items_sent_this_step(self, count: int) -> None:
        self._env_runner.items_sent_this_step = count

    @classmethod
    def config_init(cls) -> tuple[BaseEnvConfig, Any]:
        """The default settings: the environment's config, and one server or a list of them."""
        return config_class(cls)(), ServerBaseline()

    async def setup(self) -> None:  # noqa: B027 - an optional hook
        """Called once before all other hooks: load data here."""

    @abstractmethod
    async def get_next_item(self) -> Item:
        """The next item to roll out; None if there are no more."""

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

        The default calls collect_trajectory group_size times concurrently. If one call fails, the group
        fails: a group that is smaller, or padded, would be scored against the wrong baseline.
        """
        results = await gather_or_cancel(
            [self.collect_trajectory(item) for _ in range(self.config.group_size)]
        )
        later_items = [later_item for _, items in results for later_item in items]
        scored = [scored_item for scored_item, _ in results if scored_item is not None]
        return (join_items(scored) if len(scored) == len(results) else None), later_items

    async def postprocess_histories(self, trajectories: Any) -> Any:
        """Transforms what collect_trajectories returned, before it is checked and sent."""
        return trajectories

    async def cleanup(self) -> None:  # noqa: B027 - an optional hook
        """Called after each group."""

    async def close(self) -> None:  # noqa: B027 - an optional hook
        """Called at the end of a run."""

    def on_step(self, step: int) -> None:  # noqa: B027 - an optional hook
        """Called while serving, when the trainer has taken the batch of another step: a curriculum changes
        the items that follow here."""

    def save_checkpoint(self, step: int, data: dict[str, Any] | None = None) -> None:
        """Writes `data` beside the trainer's checkpoint; override to pass what must survive a restart."""
        if data is not None:
            checkpoint.write(self.checkpoint_dir, self._checkpoint_name(), step, data, self._fingerprint())

    def load_checkpoint(self) -> None:
        """Sets the attributes that save_checkpoint wrote at this step."""
        data = checkpoint.read(
            self.checkpoint_dir, self._checkpoint_name(), self.curr_step, self._fingerprint()
        )
        for name, value in data.items():
            setattr(self, name, value)

    def _checkpoint_name(self) -> str:
        return self.wandb_prepend or self.display_name

    def _fingerprint(self) -> str:
        return fingerprint(self.config, type(self).__name__)

    async def setup_wandb(self) -> None:
        await self._serve_mode.setup_wandb()

    async def register_env(self) -> None:
        await self._serve_mode.register()

    async def get_server_info(self) -> None:
        await self._serve_mode.read_server_info()

    async def get_status(self) -> None:
        await self._serve_mode.read_status()

    async def env_step_checks(self) -> None:
        await self._serve_mode.check_step()

    async def add_train_workers(self) -> None:
        await self._serve_mode.start_workers()

    async def handle_env(self, item_uuid: str) -> Any:
        """Collects and sends the group of one running item."""
        return await self._serve_mode.run_item(item_uuid)

    async def env_manager(self) -> None:
        """The serve mode."""
        await self._serve_mode.run()

    async def process_manager(self) -> None:
        """The process mode."""
        await process.run(self._env_runner)

    async def _run_evaluate(self) -> None:
        """The evaluate mode."""
        await self._env_runner.evaluate()

    async def handle_send_to_api(
        self,
        scored_data: Any,
        item: Item = None,
        do_send_to_api: bool = True,
        abort_on_any_max_length_exceeded: bool = True,
    ) -> None:
        """Validates one group or a list of them, keeps the accepted ones and sends them."""
        await self._env_runner.keep_and_send(
            scored_data, item, send=do_send_to_api, check_length=abort_on_any_max_length_exceeded
        )

    async def _send_scored_data_to_api(self, scored_data: Any) -> None:
        await self._env_runner.send(scored_data)

    def perf_stats(self, metrics_dict: dict[str, Any]) -> dict[str, Any]:
        return self._env_runner.timings.report(metrics_dict)

    def check_settings(self) -> None:  # noqa: B027  a hook: most environments have nothing to check
        """Called once before the environment runs; raises ConfigError if it cannot work with its settings."""

    async def create_rollout_table(self, wandb_metrics: dict[str, Any]) -> dict[str, Any]:
        if (table := metrics.rollout_table(self.config, self.rollouts_for_wandb)) is not None:
            wandb_metrics["train/rollouts"] = table
        return wandb_metrics

    async def add_rollouts_for_wandb(self, scored_data: Any, item: Item = None) -> None:
        """Stores a few rollouts as text for W&B; where that is off, no tokenizer is loaded for it."""
        if not metrics.wandb_is_configured(self.config):
            return
        limit = self.config.num_rollouts_per_group_for_logging
        size = len(scored_data["tokens"])
        texts = [
            self.tokenizer.decode(ids) if len(ids) else metrics.format_messages(scored_data, index)
            for index, ids in enumerate(scored_data["tokens"][: size if limit == -1 else limit])
        ]
        self.rollouts_for_wandb.append(list(zip(texts, scored_data["scores"], strict=False)))
        del self.rollouts_for_wandb[: -self.config.num_rollouts_to_keep]

    async def wandb_log(self, wandb_metrics: dict[str, Any] | None = None) -> None:
        """Logs the metrics of a step. Override it to add your own, and call this at the end."""
        logged = {
            **(wandb_metrics or {}),
            **metrics.summarize_lengths(self.completion_lengths, self.max_token_len),
        }
        logged = self.perf_stats(await self.create_rollout_table(logged))
        self.rollouts_for_wandb, self.completion_lengths = [], []
        if self.wandb_prepend is not None:
            logged = {f"{self.wandb_prepend}_{name}": value for name, value in logged.items()}
        for index, server in enumerate(self.server.servers):
            logged |= await server.wandb_metrics({}, f"server_{index}")
        metrics.log_to_wandb(self.config, logged, self.curr_step)

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
        from hermes.envs.modes.evaluate import evaluate_log

        first_server = getattr(self.server.servers[0], "config", None) if self.server.servers else None
        model = (
            model_name
            or getattr(self.config, "model_name", None)
            or getattr(first_server, "model_name", None)
        )
        evaluate_log(
            metrics,
            self.config.data_dir_to_save_evals,
            task_name or f"{self.display_name}_eval",
            model,
            start_time,
            end_time,
            {"max_new_tokens": self.config.max_token_length, **(generation_parameters or {})},
            samples,
            verbose,
        )

    @classmethod
    def cli(cls) -> None:
        """Runs `serve`, `process` or `evaluate` as given on the command line, and exits the process."""
        from hermes.envs.modes.commandline import main

        main(cls)
