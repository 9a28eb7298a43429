"""API, trainer and environment, started one by one around an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.engine.http.engine_process import KEY, Server
from tests.training.world import Process, start_api

LETTERS = Path(__file__).parent / "environments" / "letters.py"
GROUP_SIZE, BATCH = 4, 8


class Parts:
    """The API and what is started beside it; everything ends with the test."""

    def __init__(self, home: Path, engine: Server, model: Path, steps: int) -> None:
        self._home, self._engine, self._model, self._steps = home, engine, model, steps
        self._api, self.url = start_api(home)
        self._processes = [self._api]

    def trainer(self, *flags: str) -> Process:
        return self._start(
            *("train", "grpo", "--base-model", str(self._model), "--rank", "4", "--name", "run"),
            *("--num-steps", str(self._steps), "--batch-size", str(BATCH), "--api-url", self.url),
            *("--checkpoint-every", "100", *flags),
        )

    def env(
        self,
        total_steps: int,
        *options: str,
        settings: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> Process:
        """`options` are before the environment, `settings` after it; `env`: variables."""
        defaults = {
            "env.group_size": GROUP_SIZE,
            "env.total_steps": total_steps,
            "env.max_batches_offpolicy": 1,
            "env.rollout_server_url": self.url,
            "env.tokenizer_name": self._model,
            "env.steps_per_eval": 1000,
            "env.ensure_scores_are_not_same": False,
            "env.reward_delay_s": 0.5,
            "env.use_wandb": False,
            "openai.base_url": f"{self._engine.url}/v1",
            "openai.model_name": "policy",
            "openai.server_type": "sglang",
            "openai.api_key": KEY,
        }
        flags = (word for name, value in defaults.items() for word in (f"--{name}", str(value)))
        return self._start("env", "serve", *options, str(LETTERS), *flags, *settings, env=env)

    def _start(self, *arguments: str, env: Mapping[str, str] | None = None) -> Process:
        service = {"TINKER_BASE_URL": self._engine.url, "TINKER_API_KEY": KEY, **(env or {})}
        self._processes.append(Process(self._home, *arguments, env=service))
        return self._processes[-1]

    def close(self) -> None:
        for process in reversed(self._processes):
            process.kill()
