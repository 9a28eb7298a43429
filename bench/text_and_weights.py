"""Is a policy with a text and an adapter better than either alone? All four are scored on the same tasks.

    python bench/text_and_weights.py [--env directory] [--seeds 3] [--steps 16] > results.jsonl

For each seed, in a home of its own: `hermes improve --text system_prompt` finds a text among proposals
that people wrote; `hermes rl start` trains an adapter without it; and another run, with
`--set start_from=policy:TEXT`, trains one in whose rollouts the text stands. Both runs have the same steps.
Then the model alone, the text, the adapter and both work on held-out tasks, which no step and no choice of a
text has seen. Whether the gate promoted the text, which it decides on such tasks, is reported and changes
nothing. Each seed is one JSON line, and the last line has all seeds together.

`directory` (texts/directory.py) asks what only a text can say and what a small model reads badly: its
proposals hold the directory in several wordings. Any other environment is tried with texts/instructions.txt.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
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
from hermes.policies.text.ledger import Ledger, Spending
from hermes.policies.text.search import Evaluator
from hermes.rl.run import find_run, read_metrics
from hermes.rl.start import current_status
from hermes.training.policy_registry import PolicyRegistry

TEXTS = Path(__file__).parent / "texts"
DIRECTORY = TEXTS / "directory.py"
MODEL = "hermes/smollm2"
FRESH_SEED = 1_000
"""Added to the seed: tasks that neither search nor gate has seen, where the environment draws them."""
ARMS = ("neither", "text", "adapter", "both")
_WORDINGS = (
    "{facts}",
    "These people work at the firm:\n{facts}",
    "You are the assistant of a firm. These people work there:\n{facts}\nAnswer in one short sentence, as in:"
    " Anna Berg works in Rome.",
    "Use this directory.\n{facts}\nReply with one short sentence.",
    "{facts}\nAnswer with the name of the city.",
    "Look the person up and answer in one sentence, as the directory has it.\n{facts}",
)


class Seed:
    """The work of one seed, in a folder of its own."""

    starting = threading.Lock()
    """Held while a run starts: runs of several homes choose their ports one after the other."""

    def __init__(self, seed: int, home: Path, options: argparse.Namespace) -> None:
        self.seed, self.home, self.options = seed, home, options
        self.environ = {
            **os.environ,
            "HERMES_HOME": str(home),
            "DIRECTORY_FIRM": str(seed),
            **({} if options.device == "auto" else {"HERMES_RL__DEVICE": options.device}),
        }
        self.env = str(DIRECTORY) if options.env == "directory" else options.env
        self.seconds: dict[str, int] = {}

    def run(self) -> dict[str, Any]:
        began_s = time.monotonic()
        with ThreadPoolExecutor(2) as pool:
            adapter = pool.submit(self.train, "adapter")
            outcome = self.timed("search", self.search)
            policies = PolicyRegistry(self.home).policies()
            text = policies[-1] if policies else None
            both = None if text is None else self.train("both", f"policy:{text.id}")
            runs = {"adapter": adapter.result(), "both": both}
        texts = {} if text is None else {name: str(content) for name, content in text.texts.items()}
        arms: dict[str, tuple[str, Mapping[str, str]]] = {"neither": (MODEL, {}), "text": (MODEL, texts)}
        arms |= {name: (f"run:{name}", texts if name == "both" else {}) for name in runs if runs[name]}
        figures = self.timed("evaluation", lambda: self.measure(arms))
        self.seconds["all"] = round(time.monotonic() - began_s)
        facts = {"seed": self.seed, "env": self.options.env, "steps": self.options.steps}
        return {**facts, "seconds": self.seconds, "text": outcome, "texts": texts, "runs": runs} | {
            "held_out": figures
        }

    def timed(self, name: str, work: Any) -> Any:
        began_s = time.monotonic()
        result = work()
        self.seconds[name] = round(time.monotonic() - began_s)
        print(f"seed {self.seed}: {name} {self.seconds[name]} s", file=sys.stderr, flush=True)
        return result

    def search(self) -> Any:
        """The outcome of the search and of the gate."""
        proposals = TEXTS / "instructions.txt"
        if self.options.env == "directory":
            sys.path.insert(0, str(TEXTS))
            from directory import handbook

            proposals = self.home / "proposals.txt"
            wordings = [wording.format(facts=handbook(self.seed)) for wording in _WORDINGS]
            proposals.write_text("\n\n".join(wordings) + "\n")
        return self.hermes(
            *("improve", "--text", SYSTEM_PROMPT, "--env", self.env, "--model", MODEL),
            *("--proposals", str(proposals), "--max-calls", str(self.options.max_calls)),
            *("--concurrency", "48", "--seed", str(self.seed)),
        )

    def train(self, name: str, start: str = "") -> dict[str, Any]:
        """The curve of a run of this name, after its end."""
        options = self.options
        fields = {
            "total_steps": options.steps,
            "group_size": options.group_size,
            "batch_size": options.group_size * options.groups,
            "steps_per_eval": 10 * options.steps,
            "eval_size": 4,  # evaluated before the first step; the arms are measured below
            "learning_rate": options.rate,
            "schedule": "linear",
            "tinker.seed": self.seed,
            "env_replicas": options.replicas,
            "save_checkpoint_interval": options.steps,
            "use_wandb": "false",
            "start_from": start,
            **({} if options.kv_gib is None else {"engine_kv_gib": options.kv_gib}),
            **({} if options.env == "directory" else {"env.seed": self.seed}),
        }
        edits = [word for key, value in fields.items() for word in ("--set", f"{key}={value}")]
        with self.starting:
            self.hermes("rl", "start", "--no-preflight", "--env", self.env, "--name", name, *edits)
        began_s, run = time.monotonic(), find_run(self.home, name)
        while not (status := current_status(run)).state.ended:
            time.sleep(0.5)
        self.seconds[name] = round(time.monotonic() - began_s)
        print(f"seed {self.seed}: {name} {self.seconds[name]} s", file=sys.stderr, flush=True)
        curve = [round(row.get("reward/mean", 0.0), 4) for row in read_metrics(run.metrics_path)]
        return {"state": status.state.value, "reason": status.reason, "reward": curve}

    def measure(self, arms: Mapping[str, tuple[str, Mapping[str, str]]]) -> dict[str, Any]:
        """Each arm on the same tasks; arms of one model share its engine; only one runs at a time."""
        scores: dict[str, list[float]] = {}
        for model in dict.fromkeys(model for model, _ in arms.values()):
            of_model = {name: texts for name, (used, texts) in arms.items() if used == model}
            scores |= asyncio.run(self.scored(model, of_model))
        return {name: {"success": asdict(interval(scores[name])), "tasks": scores[name]} for name in arms}

    async def scored(self, model_name: str, arms: Mapping[str, Mapping[str, str]]) -> dict[str, list[float]]:
        """Whether each held-out task succeeded."""
        config = load({}, self.environ)
        fresh = [] if self.options.env == "directory" else ["--env.seed", str(FRESH_SEED + self.seed)]
        if self.options.env == "directory":
            fresh = ["--env.firm", str(self.seed)]
        env: Any
        cls = load_environment(locate_environment(self.env, ()))
        env, _ = commandline.build(cls, commandline.parse(["evaluate", *fresh]))
        async with open_worker(config, model_name, lambda line: None) as model:
            signal = await EnvironmentSignal.open(config, model, env)
            tasks = [task for task in signal.tasks if task.held_out][: self.options.tasks]
            results = {}
            try:
                for name, texts in arms.items():
                    folder = self.home / "scores" / name
                    folder.mkdir(parents=True, exist_ok=True)
                    evaluator = Evaluator(signal, Ledger(folder, Spending(0)), 48)
                    scores = await evaluator.scores(texts, tasks)
                    results[name] = [float(score.score == 1) for score in scores]
            finally:
                await signal.close()
        return results

    def hermes(self, *arguments: str) -> Any:
        """What the command prints as JSON."""
        command = [sys.executable, "-m", "hermes", *arguments, "--json"]
        done = subprocess.run(command, env=self.environ, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(arguments[:2])} failed: {done.stderr[-2000:]}")
        return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--env", default="directory")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=3, help="seeds that share the machine")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--groups", type=int, default=16, help="tasks a step")
    parser.add_argument("--group-size", type=int, default=16)
    parser.add_argument("--rate", type=float, default=3e-4)
    parser.add_argument("--replicas", type=int, default=2, help="processes of an environment")
    parser.add_argument("--kv-gib", type=float, default=None, help="of each engine")
    parser.add_argument("--tasks", type=int, default=200, help="most held-out tasks")
    parser.add_argument("--max-calls", type=int, default=400)
    options = parser.parse_args()
    totals: dict[str, list[float]] = {name: [] for name in ARMS}
    with tempfile.TemporaryDirectory(prefix="text-and-weights-") as folder:
        homes = [Path(folder) / str(seed) for seed in range(options.seeds)]
        for home in homes:
            home.mkdir()
        seeds = [Seed(seed, home, options) for seed, home in enumerate(homes)]
        with ThreadPoolExecutor(options.at_once) as pool:
            for line in pool.map(lambda seed: seed.run(), seeds):
                for name, figures in line["held_out"].items():
                    totals[name] += figures.pop("tasks")
                print(json.dumps(line), flush=True)
    pooled = {name: asdict(interval(values)) for name, values in totals.items() if values}
    print(json.dumps({"env": options.env, "all_seeds": pooled}), flush=True)


if __name__ == "__main__":
    main()
