"""Evaluations without an environment: a data set, one call per item, averaged metrics (`envs.eval`)."""

from __future__ import annotations

import argparse
import time
from abc import ABC, abstractmethod
from math import prod
from typing import Any

from hermes.envs.modes.evaluate import evaluate_log, measure
from hermes.envs.servers.config import APIServerConfig
from hermes.envs.servers.manager import ServerManager

_CONCURRENCY = 64


def pass_at_k(m: int, c: int, k: int) -> float:
    """The probability that at least one of k samples is right, drawn from m samples of which c are right."""
    if m - c < k:
        return 1.0
    return 1.0 - prod(1.0 - k / drawn for drawn in range(m - c + 1, m + 1))


class EvalBase(ABC):
    """Subclasses load the data and run one item; calling the object runs all items and writes the results."""

    def __init__(self, pass_at_n: int = 1, pass_at_n_samples: int = 1, **kwargs: Any) -> None:
        self.pass_at_n = pass_at_n
        self.pass_at_n_samples = pass_at_n_samples
        for name, value in kwargs.items():
            setattr(self, name, value)
        self.data = self.setup_data()

    @abstractmethod
    def setup_data(self) -> list[Any]: ...

    @abstractmethod
    async def run_item(self, server: ServerManager, data_item: Any) -> tuple[dict[str, Any], Any]:
        """The metrics of an item, and a sample for the log."""

    def get_generation_params(self) -> dict[str, Any]:
        return {
            "temperature": getattr(self, "temperature", 0.0),
            "n": max(self.pass_at_n_samples, self.pass_at_n),
            "top_p": getattr(self, "top_p", 1.0),
            "max_tokens": getattr(self, "max_tokens", -1),
        }

    async def chat_completion(self, server: ServerManager, messages: list[Any]) -> Any:
        return await server.chat_completion(messages=messages, **self.get_generation_params())

    async def __call__(self, server_manager: ServerManager) -> dict[str, float]:
        started_at = time.time()
        results = await measure(self.data, lambda item: self.run_item(server_manager, item), _CONCURRENCY)
        rows = [metrics for metrics, _ in results.measured]
        metrics = {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]} if rows else {}
        metrics |= {f"dropped ({reason})": float(count) for reason, count in results.dropped.items()}
        several = f":{self.pass_at_n_samples}" if self.pass_at_n != self.pass_at_n_samples else ""
        evaluate_log(
            metrics,
            eval_dir=getattr(self, "eval_dir", None),
            task_name=f"{type(self).__name__}@{self.pass_at_n}{several}",
            model_name=server_manager.servers[0].config.model_name,
            start_time=started_at,
            end_time=time.time(),
            generation_parameters=self.get_generation_params(),
            samples=[sample for _, sample in results.measured],
            verbose=getattr(self, "verbose", True),
        )
        return metrics


async def eval_runner(eval_env: EvalBase) -> dict[str, float]:
    """Runs an evaluation with the flags --server-url and --model-name."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--server-url", default="http://localhost:8000", help="Address of the model server.")
    parser.add_argument("--model-name", default="default", help="Name of the model.")
    arguments = parser.parse_args()
    config = APIServerConfig(
        api_key="none", base_url=arguments.server_url, model_name=arguments.model_name, health_check=False
    )
    return await eval_env(ServerManager([config]))
