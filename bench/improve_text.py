"""Does a search over instructions that people wrote raise a small model's success on tasks it has not seen?

    python bench/improve_text.py [--env format] [--seeds 3] [--tasks 100] [--max-calls 500] > results.jsonl

For each seed: `hermes improve --text system_prompt --env ENV --proposals texts/instructions.txt` in a home
of its own, and then both prompts on fresh tasks that neither the search nor its decision has seen. Each seed
is one JSON line: the outcome, and mean reward and success on the fresh tasks with intervals, before
and after.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hermes.cli.env import load_environment, locate_environment
from hermes.cli.policy.signal import open_worker
from hermes.config.load import load
from hermes.core.stats import interval
from hermes.core.texts import SYSTEM_PROMPT
from hermes.envs.modes import commandline
from hermes.policies.text.environment import EnvironmentSignal
from hermes.policies.text.improve import first_texts
from hermes.policies.text.ledger import Ledger, Spending
from hermes.policies.text.search import Evaluator
from hermes.training.policy_registry import PolicyRegistry

PROPOSALS = Path(__file__).parent / "texts/instructions.txt"
MODEL = "hermes/smollm2"
AT_ONCE = 16
FRESH_SEED = 1_000
"""Added to the seed of the search: other tasks."""


def improved(home: Path, environment: str, seed: int, max_calls: int) -> dict[str, Any]:
    """The outcome that the command prints."""
    command = [sys.executable, "-m", "hermes", "improve", "--text", SYSTEM_PROMPT, "--env", environment]
    command += ["--model", MODEL, "--proposals", str(PROPOSALS), "--seed", str(seed)]
    command += ["--max-calls", str(max_calls), "--concurrency", str(AT_ONCE), "--json"]
    environ = {**os.environ, "HERMES_HOME": str(home)}
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True)
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return facts


async def measured(
    home: Path, environment: str, seed: int, count: int, prompts: dict[str, str]
) -> dict[str, Any]:
    """Reward and success of each prompt on the same fresh tasks."""
    config = load({}, {**os.environ, "HERMES_HOME": str(home)})
    arguments = commandline.parse(["evaluate", "--env.seed", str(FRESH_SEED + seed)])
    env: Any
    env, _ = commandline.build(load_environment(locate_environment(environment, ())), arguments)
    async with open_worker(config, MODEL, lambda line: None) as model:
        signal = await EnvironmentSignal.open(config, model, env)
        tasks = [task for task in signal.tasks if task.held_out][:count]
        evaluator = Evaluator(signal, Ledger(home, Spending(0)), AT_ONCE)
        figures = {}
        try:
            for name, prompt in prompts.items():
                scores = await evaluator.scores({SYSTEM_PROMPT: prompt}, tasks)
                figures[name] = {
                    "reward": asdict(interval([score.score for score in scores])),
                    "success": asdict(interval([float(score.score == 1) for score in scores])),
                }
        finally:
            await signal.close()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--env", default="format")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--max-calls", type=int, default=500)
    options = parser.parse_args()
    for seed in range(options.seeds):
        with tempfile.TemporaryDirectory(prefix="improve-text-") as folder:
            home, started = Path(folder), time.monotonic()
            outcome = improved(home, options.env, seed, options.max_calls)
            seconds = round(time.monotonic() - started)
            config = load({}, {**os.environ, "HERMES_HOME": str(home)})
            before = first_texts(config, (SYSTEM_PROMPT,), {}, None)[SYSTEM_PROMPT]
            policies = PolicyRegistry(home).policies()
            after = str(policies[-1].texts[SYSTEM_PROMPT]) if policies else before
            prompts = {"before": before, "after": after}
            figures = asyncio.run(measured(home, options.env, seed, options.tasks, prompts))
        line = {"seed": seed, "env": options.env, "seconds": seconds, "outcome": outcome, "prompt": after}
        print(json.dumps({**line, "fresh": figures}), flush=True)


if __name__ == "__main__":
    main()
