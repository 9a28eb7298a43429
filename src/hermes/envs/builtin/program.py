"""program: a program of yours does the task, and is trained as it is. No class has to be written.

    hermes rl start --agent "pi -p {prompt}" --prompts tasks.jsonl --reward tests.py:score
    hermes env process program --env.agent ./my_agent.py --env.dataset_name tasks.jsonl --env.reward check.sh

Every rollout runs the command in a sandbox of its own, with the task's files, and with a model behind the one
URL that it can reach: OpenAI's chat completions and Responses, and Anthropic's Messages. `{prompt}` and
`{prompt_file}` in the command are the task; without them it is on standard input. Known clients are pointed
at the model by their own settings, others by OPENAI_BASE_URL, ANTHROPIC_BASE_URL and the like.

The reward is FILE.py:FUNCTION as for `reward_function`, a script that runs in the sandbox once the program
and all it started have ended (its exit code, or a number in $HERMES_REWARD_FILE; the task is JSON on its
standard input), or `program`: what the program itself posts to its URL's /reward.
"""

from __future__ import annotations

import json
import math
import secrets
import shlex
from collections import Counter
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from hermes.batch.reward import load_reward
from hermes.batch.tasks import TaskRow
from hermes.envs.agent.result import AgentResult
from hermes.envs.agent.rollout import RolloutContext, RolloutSpec, ScoredRollout
from hermes.envs.agent.tool_context import ToolContext
from hermes.envs.builtin.reward_function import RewardFunctionConfig, RewardFunctionEnv
from hermes.envs.phase import current_phase
from hermes.envs.programs.launch import Program, agent_name, find_program
from hermes.envs.programs.record import ProgramSettings, RolloutFacts
from hermes.envs.programs.run import ProgramHost, finished_program
from hermes.envs.rewards.result import GraderError, RewardResult
from hermes.errors import UsageError
from hermes.gateway.sampled import OtherModels
from hermes.models.open import open_model

if TYPE_CHECKING:
    from hermes.tools.base import Workbench

PROGRAM_REWARD = "program"
_MOST_REWARD_BYTES = 4_096


class ProgramConfig(RewardFunctionConfig):
    agent: str = Field(
        default="",
        description="The program's command: names in braces are filled in ({prompt}, {prompt_file}, "
        "{workspace}, {base_url}, {model}, {key}).",
    )
    agent_paths: list[str] = Field(
        default=[],
        description="Further files and folders of this machine that the program sees, read-only.",
    )
    agent_setup: str | None = Field(
        default=None, description="A command that prepares the workspace before the program starts."
    )
    agent_crash: Literal["drop", "score"] = Field(
        default="drop",
        description="A program that ends with an error: drop its group, or score what it left.",
    )
    train_model: str = Field(
        default="",
        description="Train only calls that name this model; the model that another call names, as "
        "provider/name, answers it. Empty: the policy answers every call.",
    )
    train_side_calls: bool = Field(
        default=False,
        description="Also train calls beside the task: those without tools in a rollout that has tools.",
    )
    reward: str = Field(
        default="",
        description="What scores a rollout: FILE.py:FUNCTION, a script to run, or program (it posts it).",
    )


class ProgramEnv(RewardFunctionEnv):
    """Tasks from a file, done by a program of yours: --env.agent, --env.dataset_name, --env.reward."""

    name = "program"
    env_config_cls: ClassVar[Any] = ProgramConfig
    config: ProgramConfig
    _host: ProgramHost | None = None
    """None: our own agent does the tasks, in an environment on this class."""

    @property
    def display_name(self) -> str:
        words = self.config.agent.split()
        return agent_name(words) if words else "program"

    async def setup(self) -> None:
        """ConfigError: the program, its tasks or its reward cannot be used."""
        program = find_program(self.config.agent, self.config.agent_paths)
        self._script = script_of(self.config.reward)
        await super().setup()
        await self.open_programs(program)

    async def open_programs(self, program: Program) -> None:
        """From now on rollouts run this program."""
        config = self.config
        self._program_settings = ProgramSettings(
            program,
            timeout_s=float(config.terminal_lifetime),
            max_calls=config.max_agent_turns,
            setup=config.agent_setup,
            train_model=config.train_model,
            train_side=config.train_side_calls,
            takes_reward=config.reward == PROGRAM_REWARD,
            scores_crashes=config.agent_crash == "score",
        )
        settings = self.hermes_config()
        other_models = (
            OtherModels(config.train_model, partial(open_model, settings)) if config.train_model else None
        )
        self._host = ProgramHost(settings.home, other_models)
        self._counts: Counter[str] = Counter()
        self._counted = 0
        await self._host.open(dict(settings.secrets))

    def load_function(self) -> Any:
        if self._script is not None or self.config.reward == PROGRAM_REWARD:
            return None
        return load_reward(self.config.reward)

    def run_rollout(
        self, context: RolloutContext, spec: RolloutSpec
    ) -> AbstractAsyncContextManager[tuple[AgentResult, Workbench]]:
        assert self._host is not None, "setup has run"
        return finished_program(context, spec, self._host, self._program_settings)

    async def compute_reward(self, item: TaskRow, result: AgentResult, ctx: ToolContext) -> Any:
        if self.config.reward == PROGRAM_REWARD:
            stated = RolloutFacts.from_json(result.trajectory.header.metadata).program_reward
            if stated is None:
                raise GraderError(
                    "the program posted no reward.", 'POST {"reward": 1} to the URL of its model, …/reward'
                )
            return stated
        if self._script is not None:
            return await run_script(self._script, item, result, ctx)
        return await super().compute_reward(item, result, ctx)

    def _log_rollouts(self, rollouts: Any) -> None:
        super()._log_rollouts(rollouts)
        if self._host is not None and current_phase() == "train":
            for rollout in rollouts:
                self._count(rollout)

    def _count(self, rollout: ScoredRollout) -> None:
        facts = RolloutFacts.from_json(rollout.result.trajectory.header.metadata)
        self._counted += 1
        self._counts.update(asdict(facts.counts))

    async def wandb_log(self, wandb_metrics: dict[str, Any] | None = None) -> None:
        metrics = dict(wandb_metrics or {})
        if self._host is not None and self._counted:
            metrics |= {f"program/{name}": count / self._counted for name, count in self._counts.items()}
            self._counts.clear()
            self._counted = 0
        await super().wandb_log(metrics)

    async def close(self) -> None:
        if self._host is not None:
            await self._host.close()
        await super().close()


def script_of(reward: str) -> Path | None:
    """The script that scores a rollout; None: a function does, or the program itself. UsageError: nothing."""
    if not reward or reward == PROGRAM_REWARD:
        return None
    path = Path(reward).expanduser()
    if path.is_file() and path.suffix != ".py":
        return path.resolve()
    if path.suffix == ".sh" or (":" not in reward and not path.is_file()):
        raise UsageError(f"the reward '{reward}' is no file.", "Name FILE.py:FUNCTION, a script, or program.")
    return None


async def run_script(script: Path, row: TaskRow, result: AgentResult, ctx: ToolContext) -> RewardResult:
    """The reward that a script gives. GraderError: it cannot be run, or gives no number.

    It is written into the sandbox only now, under a name that nobody could know.
    """
    folder = f"/tmp/.reward-{secrets.token_hex(8)}"
    reward_file = f"{folder}/reward"
    written = await ctx.write_file(f"{folder}/{script.name}", script.read_text("utf-8", "replace"))
    task = {
        "id": row.key,
        "prompt": row.prompts[0],
        "expected": row.expected,
        "answer": result.final_response,
        "exit_code": RolloutFacts.from_json(result.trajectory.header.metadata).exit_code,
        **row.metadata,
    }
    task_written = await ctx.write_file(f"{folder}/task.json", json.dumps(task, ensure_ascii=False))
    for outcome in (written, task_written):
        if "error" in outcome:
            raise GraderError(f"the reward's script cannot be copied: {outcome['error']}")
    shell = "" if script.read_bytes()[:2] == b"#!" else "/bin/sh "
    command = (
        f"chmod 700 {folder}/{shlex.quote(script.name)}; export HERMES_REWARD_FILE={reward_file}; "
        f"{shell}{folder}/{shlex.quote(script.name)} < {folder}/task.json"
    )
    ended = await ctx.terminal(command)
    if "error" in ended or ended["exit_code"] in (126, 127):
        reason = ended.get("error") or ended["output"].strip()[-300:]
        raise GraderError(f"{script.name} could not score a rollout: {reason}")
    stated = await ctx.read_file(reward_file)
    detail = ended["output"].strip()[-300:]
    if "error" in stated:
        return RewardResult(float(ended["exit_code"] == 0), detail=detail)
    return RewardResult(read_reward(stated["content"][:_MOST_REWARD_BYTES], script.name), detail=detail)


def read_reward(text: str, name: str) -> float:
    """The number in a reward file, by itself or as JSON's `reward`. GraderError: there is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        value = value.get("reward")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise GraderError(f"{name} wrote no number to $HERMES_REWARD_FILE: {text.strip()[:100]!r}")
    return float(value)


if __name__ == "__main__":
    ProgramEnv.cli()
