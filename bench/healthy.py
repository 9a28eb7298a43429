"""Healthy runs of twenty kinds: the proof of training and `hermes rl doctor` must raise no alarm.

    python bench/healthy.py MODEL_FOLDER --output healthy.json [--device cpu|cuda] [--at-once 4] [--steps 12]

Each run is started by `hermes rl start` in a home of its own, with its own engine, environment and trainer.
Sizes, families, dtypes, learning rates, temperatures, losses and ages of rollouts differ. MODEL_FOLDER is the
bundled model; the other models have random weights and its tokenizer. An alarm is a strike of the proof, a
run that failed, or a cause that `rl doctor` names about the weights. What doctor says about the task (answers
are cut off, say) is listed as advice. The exit code is 1 if there was an alarm.

`--draws N` makes N runs of random shape instead, from a seed that is printed: one to six turns, answers of 5
to 2,000 tokens (60 on a CPU), other batch sizes, arithmetic and evaluations; one process of the run is killed
in some of them, some are stopped and resumed, and some share one engine.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import secrets
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hermes.rl.run import RlRun, find_run, read_metrics
from hermes.rl.supervise import ports
from hermes.serving.fetch import fetch_json

TASKS = (
    "rain",
    "trees",
    "boats",
    "tea",
    "stones",
    "bread",
    "wind",
    "glass",
    "roads",
    "clocks",
    "ink",
    "maps",
)
REWARDS = """
def vowels(ctx):
    text = ctx.answer.lower()
    return sum(letter in "aeiou" for letter in text) / len(text) if text else 0.0


def digits(ctx):
    return sum(letter.isdigit() for letter in ctx.answer) / (len(ctx.answer) or 1)


def brief(ctx):
    return -len(ctx.answer) / 100
"""
CONVERSATION = """
import asyncio
import random

from atroposlib.envs.base import BaseEnv, BaseEnvConfig
from pydantic import Field


class ConversationConfig(BaseEnvConfig):
    turns: int = Field(default=2, description="Model calls of a rollout.")
    answer_tokens: int = Field(default=24, description="Longest answer of a turn.")
    delay_s: float = Field(default=0.0, description="Longest time between two turns.")


class ConversationEnv(BaseEnv):
    name = "conversation"
    env_config_cls = ConversationConfig

    async def setup(self):
        self.count = 0

    async def get_next_item(self):
        self.count += 1
        return self.count

    async def collect_trajectory(self, item):
        async with self.server.managed_server(tokenizer=self.tokenizer) as managed:
            messages = [{"role": "user", "content": f"Say something about the number {item}."}]
            for turn in range(self.config.turns):
                answer = await managed.chat_completion(
                    messages=messages, n=1, max_tokens=self.config.answer_tokens
                )
                text = answer.choices[0].message.content or ""
                messages += [
                    {"role": "assistant", "content": text},
                    {"role": "user", "content": f"Go on, part {turn + 2}."},
                ]
                await asyncio.sleep(random.random() * self.config.delay_s)
            node = managed.get_state()["nodes"][0]
        score = sum(letter in "aeiou" for letter in text.lower()) / (len(text) or 1)
        return {
            "tokens": node.tokens,
            "masks": node.masked_tokens,
            "inference_logprobs": node.logprobs,
            "scores": score,
        }, []

    async def evaluate(self, *args, **kwargs):
        pass
"""
"""A stranger's environment of several turns, on the class of Atropos."""
ABOUT_TASK = frozenset(
    {"no signal", "truncation", "tool errors", "entropy collapse", "no progress", "old rollouts"}
)
"""Causes that describe a task, its results or the age that a case allows; no random model makes progress in a
few steps."""
SHAPES: dict[str, tuple[str, int, int]] = {
    "llama-xs": ("llama", 2, 64),
    "llama-s": ("llama", 4, 256),
    "llama-m": ("llama", 12, 768),
    "llama-l": ("llama", 16, 2048),
    "qwen3-s": ("qwen3", 4, 256),
    "qwen3-m": ("qwen3", 12, 1024),
    "mistral-s": ("mistral", 4, 256),
}
"""Models with random weights: family, layers, width."""


@dataclass(frozen=True)
class Case:
    model: str
    """The bundled one, or a shape."""
    cpu_model: str
    """The same on a CPU."""
    reward: str = "vowels"
    fields: dict[str, Any] = field(default_factory=dict)
    turns: int = 0
    """Model calls of a rollout of CONVERSATION; 0: one answer that a reward function scores."""
    killed: str | None = None
    """The process that dies in the middle of the run."""
    resumed: bool = False
    """The run is stopped in the middle and resumed."""
    shares_engine: bool = False


CASES: dict[str, Case] = {
    "defaults": Case("bundled", "llama-xs"),
    "fp32": Case("bundled", "llama-s", fields={"engine_dtype": "float32"}),
    "bf16": Case("llama-s", "llama-xs", fields={"engine_dtype": "bfloat16"}),
    "low rate": Case("bundled", "llama-s", fields={"learning_rate": 1e-5}),
    "high rate": Case("bundled", "llama-xs", fields={"learning_rate": 1e-3}),
    "high rate, fp32": Case("llama-m", "llama-s", fields={"learning_rate": 1e-3, "engine_dtype": "float32"}),
    "cold": Case("bundled", "llama-xs", fields={"agent_temperature": 0.7}),
    "warm": Case("qwen3-m", "qwen3-s", fields={"agent_temperature": 1.2}),
    "old rollouts": Case("bundled", "llama-s", fields={"synchronous": False, "max_batches_offpolicy": 4}),
    "old and cold": Case(
        "llama-m",
        "llama-xs",
        fields={"synchronous": False, "max_batches_offpolicy": 3, "agent_temperature": 0.7},
    ),
    "ppo, two epochs": Case("bundled", "llama-xs", fields={"loss": "ppo", "epochs": 2}),
    "cispo": Case("qwen3-s", "qwen3-s", fields={"loss": "cispo"}),
    "gspo": Case("mistral-s", "mistral-s", fields={"loss": "gspo"}),
    "penalty": Case("bundled", "llama-xs", fields={"kl_coefficient": 0.05}),
    "rank 4": Case("bundled", "llama-s", fields={"lora_rank": 4}),
    "rank 64, attention only": Case("llama-m", "llama-s", fields={"lora_rank": 64, "lora_targets": ["attn"]}),
    "with the LM head": Case("llama-s", "llama-xs", fields={"lora_targets": ["attn", "mlp", "unembed"]}),
    "rewards below zero": Case("bundled", "llama-xs", "brief"),
    "rare rewards": Case("bundled", "llama-s", "digits"),
    "large groups": Case("llama-l", "llama-s", fields={"group_size": 16, "batch_size": 32}),
}


def draw_case(rng: random.Random, device: str) -> Case:
    """A run of random shape: answer lengths, sizes, ages of rollouts, overlapping evaluations, arithmetic."""
    longest = round(math.exp(rng.uniform(math.log(5), math.log(2000 if device == "cuda" else 60))))
    group = rng.choice([2, 4, 8, 16] if device == "cuda" else [2, 4])
    fields: dict[str, Any] = {
        "max_token_length": longest,
        "max_token_trainer_length": longest + 256,
        "group_size": group,
        "batch_size": group * rng.choice([1, 2, 4]),
        "synchronous": rng.random() < 0.25,
        "max_batches_offpolicy": rng.randint(1, 6),
        "steps_per_eval": rng.choice([2, 5, 1000]),
        "eval_handling": rng.choice(["STOP_TRAIN", "LIMIT_TRAIN", "NONE"]),
        "learning_rate": 10 ** rng.uniform(-5, -3),
        "lora_rank": rng.choice([4, 8, 16, 32, 64]),
        "loss": rng.choice(["importance_sampling", "ppo", "cispo", "gspo"]),
        "agent_temperature": rng.choice([0.7, 1.0, 1.0, 1.2]),
    }
    arithmetic = rng.choice(["float32", "bfloat16", "exact", "nf4", "int8"])
    disturbance = rng.choice(["none", "none", "killed", "resumed", "shares engine"])
    if disturbance == "shares engine":
        arithmetic = "auto"
    elif arithmetic in ("float32", "bfloat16"):
        fields["engine_dtype"] = arithmetic
    elif arithmetic != "exact":
        fields["engine_quantize"] = arithmetic
    elif device == "cuda":
        fields["engine_exact"] = True
    models = [name for name, (_, _, width) in SHAPES.items() if device == "cuda" or width <= 64]
    model = rng.choice(models)
    reward, turns = rng.choice(["vowels", "brief"]), rng.choice([0, 0, 2, 3, 6])
    if turns:
        answer = min(longest, 3000 // turns)
        sequence = (answer + 40) * turns
        fields |= {
            "turns": turns,
            "answer_tokens": answer,
            "delay_s": rng.choice([0.0, 0.2, 1.0]),
            "max_token_length": sequence,
            "max_token_trainer_length": sequence,
        }
        del fields["agent_temperature"]
    return Case(
        model,
        model,
        reward,
        fields,
        turns,
        rng.choice(["env", "trainer", "engine", "api"]) if disturbance == "killed" else None,
        disturbance == "resumed",
        disturbance == "shares engine",
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("model", type=Path, help="folder of the bundled model")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--cases", default=";".join(CASES), help="names from the table, with semicolons")
    parser.add_argument("--draws", type=int, help="so many random cases instead of the table")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 30), help="of the draws")
    parser.add_argument("--folder", type=Path, default=Path("data/healthy"))
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    folder = options.folder.absolute()
    cases = CASES
    if options.draws:
        print(f"seed {options.seed}", flush=True)
        rng = random.Random(options.seed)
        cases = {f"draw {number}": draw_case(rng, options.device) for number in range(options.draws)}
        options.cases = ";".join(cases)
    names = options.cases.split(";")
    write_task(folder)
    for name in {_model_name(cases[name], options.device) for name in names} - {"bundled"}:
        make_model(folder / "models" / name, options.model, *SHAPES[name])
    results: dict[str, Any] = {}
    began_s = time.monotonic()

    def run(name: str) -> None:
        try:
            results[name] = run_case(name, cases[name], folder, options)
        except RuntimeError as error:
            results[name] = {"alarms": [str(error)]}
        report = {"device": options.device, "steps": options.steps, "seed": options.seed, "runs": results}
        options.output.write_text(json.dumps(report, indent=1) + "\n")
        print(f"[{time.monotonic() - began_s:5.0f} s] {name}: {json.dumps(results[name])}", flush=True)

    try:
        with ThreadPoolExecutor(options.at_once) as pool:
            list(pool.map(run, names))
    finally:
        ENGINES.stop()
    alarms = [name for name in names if results[name]["alarms"]]
    print(f"{len(names)} runs, {len(alarms)} with an alarm" + (f": {', '.join(alarms)}" if alarms else ""))
    return 1 if alarms else 0


def write_task(folder: Path) -> None:
    """The prompts and the reward functions."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rewards.py").write_text(REWARDS)
    (folder / "conversation.py").write_text(CONVERSATION)
    rows = ({"prompt": f"Say something about {thing}."} for thing in TASKS)
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def make_model(folder: Path, bundled: Path, family: str, layers: int, width: int) -> None:
    """A model with random weights and the bundled one's tokenizer."""
    if (folder / "config.json").exists():
        return
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    tokenizer: Any = AutoTokenizer.from_pretrained(bundled)
    config = AutoConfig.for_model(
        family,
        hidden_size=width,
        intermediate_size=width * 3,
        num_hidden_layers=layers,
        num_attention_heads=width // 32 if width < 256 else width // 64,
        num_key_value_heads=width // 64 if width < 256 else width // 128,
        head_dim=32 if width < 256 else 64,
        vocab_size=len(tokenizer),
        max_position_embeddings=16384,
        initializer_range=0.05,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    maker: Any = AutoModelForCausalLM
    maker.from_config(config, dtype=torch.bfloat16 if width >= 2048 else torch.float32).save_pretrained(
        folder
    )
    tokenizer.save_pretrained(folder)


def _model_name(case: Case, device: str) -> str:
    return case.model if device == "cuda" else case.cpu_model


def run_case(name: str, case: Case, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The figures of one run, from its start to its end."""
    model = _model_name(case, options.device)
    home = folder / "homes" / name.replace(" ", "-").replace(",", "")
    home.mkdir(parents=True, exist_ok=True)
    weights = options.model.absolute() if model == "bundled" else folder / "models" / model
    settings = {"model": str(weights), "device": options.device, "values": {"steps_per_eval": 1000}}
    (home / "config.yaml").write_text(json.dumps({"rl": settings}))
    fields = {
        "total_steps": options.steps,
        "group_size": 4,
        "batch_size": 16,
        "max_token_length": 24,
        "max_token_trainer_length": 256,
        "learning_rate": 1e-4,
        "lora_rank": 16,
        "engine_kv_gib": 1.0,  # several engines share a GPU
        **case.fields,
    }
    edits = [
        word
        for key, value in fields.items()
        for word in ("--set", f"{key}={value if isinstance(value, str) else json.dumps(value)}")
    ]
    if case.turns:
        task: tuple[str, ...] = ("--env", str(folder / "conversation.py"))
    else:
        reward = f"{folder / 'rewards.py'}:{case.reward}"
        task = ("--prompts", str(folder / "tasks.jsonl"), "--reward", reward, "--toolsets", "none")
    service = ("--service", ENGINES.url(weights, options.device)) if case.shares_engine else ()
    started = hermes(home, "rl", "start", "--no-preflight", *task, *service, *edits)
    run = find_run(home, started["run_id"])
    disturb(run, home, case, options.steps)
    while not (status := run.status()).state.ended:
        time.sleep(1)
    steps = list(read_metrics(run.metrics_path))
    rows = [row for row in steps if "proof/gap" in row]
    causes = [cause["cause"] for cause in hermes(home, "rl", "doctor", run.run_id)]
    strikes = sum(row.get("proof/strike", 0.0) for row in rows)
    alarms = [cause for cause in causes if cause not in ABOUT_TASK]
    if status.state.value != "completed" or not rows:
        alarms.append(f"{status.state.value} after {len(steps)} steps: {status.reason}")
    return {
        "model": model,
        **{
            name: value
            for name, value in asdict(case).items()
            if value and name not in ("model", "cpu_model")
        },
        "state": status.state.value,
        "steps": len(steps),
        "checked_steps": len(rows),  # those that had something to train on
        "strikes": strikes,
        "alarms": [*alarms, *(["a strike of the proof"] if strikes else [])],
        "advice": [cause for cause in causes if cause in ABOUT_TASK],
        "gap_mean": _mean(rows, "proof/gap"),
        "gap_p90": _mean(rows, "proof/gap_p90"),
        "limit_mean": _mean(rows, "proof/limit"),
        "followed_least": min(
            (row["probe/followed"] for row in rows if "probe/followed" in row), default=None
        ),
        "staleness_mean": _mean(rows, "health/staleness"),
    }


def disturb(run: RlRun, home: Path, case: Case, steps: int) -> None:
    """Kills a process of the run in its middle, or stops and resumes the run, where the case says so."""
    if case.killed is None and not case.resumed:
        return
    while len(list(read_metrics(run.metrics_path))) < steps // 2:
        if run.status().state.ended:
            return
        time.sleep(0.2)
    if case.killed is None:
        hermes(home, "rl", "stop", run.run_id)
        hermes(home, "rl", "resume", run.run_id)
        return
    processes = run.status().processes
    name = next((name for name in processes if name.split("-")[0] == case.killed), None)
    process_id = processes[name].process_id if name else None
    if process_id is not None:  # a run on a shared engine has none of its own
        with suppress(ProcessLookupError):
            os.kill(process_id.pid, signal.SIGKILL)


class Engines:
    """One engine a model for the runs that share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: dict[Path, tuple[subprocess.Popen[bytes], str]] = {}

    def url(self, weights: Path, device: str) -> str:
        with self._lock:
            if weights not in self._processes:
                port = ports.choose(29_100)
                command = [sys.executable, "-m", "hermes", "engine", "serve", "--model", str(weights)]
                flags = ["--device", device, "--port", str(port), "--max-adapters", "64", "--kv-gib", "2"]
                process = subprocess.Popen([*command, *flags], stdout=subprocess.DEVNULL)
                url = f"http://127.0.0.1:{port}"
                while fetch_json(f"{url}/health") is None:
                    if process.poll() is not None:
                        raise RuntimeError(f"the engine of {weights} ended with {process.returncode}")
                    time.sleep(0.5)
                self._processes[weights] = process, url
            return self._processes[weights][1]

    def stop(self) -> None:
        for process, _ in self._processes.values():
            process.terminate()
            process.wait()


ENGINES = Engines()


def _mean(rows: list[dict[str, Any]], name: str) -> float | None:
    values = [row[name] for row in rows if name in row]
    return round(sum(values) / len(values), 6) if values else None


def hermes(home: Path, *arguments: str) -> Any:
    """What the command prints as JSON."""
    command = [sys.executable, "-m", "hermes", *arguments, "--json"]
    done = subprocess.run(
        command, env={**os.environ, "HERMES_HOME": str(home)}, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments[:2])} failed: {done.stderr}")
    return json.loads(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
