"""An environment as the signal: its tasks, its reward, and its feedback in words.

Tasks that the environment evaluates on decide; the search is given those that it trains on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hermes.batch.tasks import TaskRow
from hermes.core.texts import Texts
from hermes.envs.agent import evaluate as agent_evaluate
from hermes.envs.agent.env import HermesAgentBaseEnv
from hermes.errors import UsageError
from hermes.policies.text.signal import TaskScore, TextTask, as_reference

if TYPE_CHECKING:
    from hermes.config.load import Config
    from hermes.envs.base import BaseEnv
    from hermes.models.base import ChatModel

_SEARCHED, _HELD_OUT = 64, 200
"""Most tasks that are searched with, and that decide."""
_REFERENCES = ("answer", "expected", "solution", "target")


class EnvironmentSignal:
    """Rollouts of an agent environment, in this process and with any model."""

    def __init__(self, env: HermesAgentBaseEnv, items: dict[str, Any], tasks: list[TextTask]) -> None:
        self.name = f"the reward of {env.display_name}"
        self.tasks = tasks
        self._env, self._items = env, items

    @classmethod
    async def open(cls, config: Config, model: ChatModel, env: BaseEnv) -> EnvironmentSignal:
        """UsageError if it is no agent environment, or has nothing to evaluate on."""
        if not isinstance(env, HermesAgentBaseEnv):
            raise UsageError(
                f"{env.display_name} is not an agent environment: its prompts are its author's code",
                "name one whose rollouts are agent rollouts, or --tasks FILE",
            )
        env.rehearse(_OneModel(model), config.home)
        await env.setup()
        held_out = list(await env.eval_items())[:_HELD_OUT]
        if not held_out:
            raise UsageError(
                f"{env.display_name} has no tasks to evaluate on, and a decision needs some",
                env.no_eval_items_hint,
            )
        items: dict[str, Any] = {env.item_key(item): item for item in held_out}
        tasks = [_task(env, key, item, held_out=True) for key, item in items.items()]
        for _ in range(4 * _SEARCHED):
            item = await env.get_next_item()
            if item is None or len(items) - len(held_out) >= _SEARCHED:
                break
            key = env.item_key(item)
            if key not in items:
                items[key] = item
                tasks.append(_task(env, key, item, held_out=False))
        return cls(env, items, tasks)

    async def score(self, texts: Texts, task: TextTask) -> TaskScore:
        rollout = await self._env.run_item(
            self._items[task.key], temperature=agent_evaluate.TEMPERATURE, texts=texts
        )
        result, reward = rollout.result, rollout.reward
        trajectory = result.trajectory
        parts = ", ".join(f"{name} {value:g}" for name, value in reward.parts.items())
        feedback = " ".join(part for part in (reward.detail or "", parts and f"Parts: {parts}.") if part)
        return TaskScore(
            reward.value,
            result.final_response,
            feedback,
            trajectory.header.id,
            trajectory.turns,
            trajectory.usage.total,
            trajectory.cost_usd,
        )

    async def close(self) -> None:
        await self._env.close()


def _task(env: HermesAgentBaseEnv, key: str, item: Any, *, held_out: bool) -> TextTask:
    gold = getattr(env, "gold", None)
    if gold is not None:
        reference = "\n".join(message.content for message in gold(item))
    elif isinstance(item, TaskRow):
        reference = as_reference(item.expected)
    else:
        named = [item.get(name) for name in _REFERENCES] if isinstance(item, dict) else []
        reference = "\n".join(value for value in named if isinstance(value, str))
    return TextTask(key, env.format_prompt(item), reference, held_out)


class _OneModel:
    """The same model for every rollout; who opened it closes it."""

    def __init__(self, model: ChatModel) -> None:
        self._model = model

    def rollout_model(self, limit_tokens: int | None) -> ChatModel:
        return self._model

    async def close(self) -> None:
        pass
