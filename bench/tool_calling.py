"""Function calling on functions never seen: a format-only start, GRPO by the whole stack, held-out success.

    python bench/tool_calling.py --device cuda --output DIR

Engine, trajectory API, trainer and environments are processes of their own, as in a run. The start is a few
supervised steps on gold calls to functions of the training part: enough for the form of a call. What is
measured is greedy success on requests whose functions are in no training item. The defaults are those for the
device. A headline needs several seeds: `--seed` changes tasks, adapters and sampling, and several seeds can
run side by side, each with ports of its own.

Writes to DIR: result.json (success by kind of request and number of calls, mistakes by name, seconds by
stage), wrong.jsonl (what the last policy did wrong), metrics.jsonl, curves of all requests and of each kind,
and the processes' logs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from hermes.core import Role
from hermes.core.stats import interval, wilson
from hermes.data.formats.messages import strict_message
from hermes.envs.agent.rollout import ScoredRollout
from hermes.envs.builtin.generated import tool_calls
from hermes.envs.builtin.tool_calling import ToolCallingConfig, ToolCallingEnv
from hermes.envs.tasks.functions.requests import FunctionRequest
from hermes.envs.tasks.split import Split
from hermes.quickstart.chart import svg
from hermes.quickstart.evaluate import server_config
from hermes.rl.run import read_metrics
from hermes.rl.supervise.process_group import ProcessGroup, sigterm_as_interrupt
from hermes.serving.fetch import fetch, fetch_json

MODEL = "hermes/smollm2"
MEASURED = ("simple", "parallel")
FIRST_PORT = 8470
"""Of the seed 0; each further seed takes the next two."""
MOST_WRONG = 200
"""Rows of wrong.jsonl."""
CUDA: dict[str, Any] = {
    "steps": 175,
    "groups": 32,
    "group_size": 16,
    "envs": 8,
    "at_once": 512,
    "eval_size": 256,
    "schedule": "linear",
    "rate": 5e-4,
    "train_on": ["simple", "parallel", "parallel", "parallel"],
}
CPU: dict[str, Any] = {
    "steps": 10,
    "groups": 8,
    "group_size": 8,
    "envs": 1,
    "at_once": 64,
    "eval_size": 32,
    "schedule": "constant",
    "rate": 3e-4,
    "train_on": ["simple", "parallel"],
}


def environment(args: argparse.Namespace, categories: Sequence[str], weights: str) -> ToolCallingEnv:
    config = ToolCallingConfig(
        categories=list(categories),
        eval_size=args.eval_size,
        max_eval_workers=args.at_once,
        tool_pool_size=args.at_once,
        max_token_length=args.max_tokens,
        extra_body={"model": weights},
        use_wandb=False,
    )
    return ToolCallingEnv(config, [server_config(args.engine, weights, args.at_once)])


def write_gold(env: ToolCallingEnv, rows: int, into: Path) -> None:
    """Gold calls to functions of the training part, as OpenAI messages."""
    with into.open("w") as file:
        for item in islice(env.generate(Split.TRAIN), rows):
            said = [message for message in env.gold_messages(item) if message.role is not Role.TOOL]
            tools = [{"type": "function", "function": function.schema} for function in item.offered]
            row = {"messages": [strict_message(message) for message in said], "tools": tools}
            file.write(json.dumps(row) + "\n")


async def measure(args: argparse.Namespace, weights: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Greedy success on held-out functions, category by category; and what was wrong, answer by answer."""
    found: dict[str, Any] = {}
    wrong: list[dict[str, Any]] = []
    for category in MEASURED:
        env = environment(args, [category], weights)
        try:
            await env.setup()
            items = await env.eval_items()
            scored = await asyncio.gather(*(env.run_item(item, temperature=0.0) for item in items))
        finally:
            await env.close()
        judged = list(zip(items, scored, strict=True))
        rows = [looked_at(item, one) for item, one in judged if not one.reward.success]
        found[category] = {**share([one for _, one in judged]), "by_calls": by_calls(judged)}
        found[category]["mistakes"] = dict(Counter(word for row in rows for word in set(row["mistakes"])))
        wrong = [*rows, *wrong]
    return found, wrong


def share(scored: Sequence[ScoredRollout]) -> dict[str, Any]:
    return asdict(interval([float(one.reward.success) for one in scored]))


def by_calls(judged: Sequence[tuple[FunctionRequest, ScoredRollout]]) -> dict[str, Any]:
    """Success by how many calls were wanted."""
    numbers = sorted({len(item.expected_calls) for item, _ in judged})
    return {str(n): share([one for item, one in judged if len(item.expected_calls) == n]) for n in numbers}


def looked_at(item: FunctionRequest, scored: ScoredRollout) -> dict[str, Any]:
    """A wrong answer, for a person."""
    return {
        "category": item.category,
        "request": item.text,
        "wanted": [[call.name, call.arguments] for call in item.expected_calls],
        "made": [[call.name, call.arguments] for call in tool_calls(scored.result)],
        "said": scored.result.final_response,
        "mistakes": scored.reward.detail.split("; "),
        "stopped": scored.result.outcome.stop_reason.value,
    }


def serve_engine(args: argparse.Namespace, processes: ProcessGroup) -> None:
    flags = ("--model", MODEL, "--device", args.device, "--port", args.engine.rsplit(":", 1)[1])
    state = ("--state-dir", str(args.output / "engine"))
    processes.serve(
        "engine", ("engine", "serve", *flags, *state), lambda: fetch_json(f"{args.engine}/health") is not None
    )


def format_start(args: argparse.Namespace, processes: ProcessGroup) -> dict[str, Any]:
    """The few supervised steps; what `hermes train sft` says of them."""
    rows = args.output / "format.jsonl"
    write_gold(environment(args, args.train_on, MODEL), args.sft_steps * 16, rows)
    return processes.run(
        "sft",
        (
            *(
                "train",
                "sft",
                str(rows),
                "--service",
                args.engine,
                "--name",
                f"format-{args.seed}",
                "--json",
            ),
            *("--seed", str(args.seed)),
            *("--run-dir", str(args.output / "sft"), "--learning-rate", str(args.sft_rate)),
            *("--max-steps", str(args.sft_steps)),
        ),
    )


def reinforce(args: argparse.Namespace, processes: ProcessGroup, weights: str) -> dict[str, Any]:
    """GRPO by api, trainer and environments; what `hermes train grpo` says at its end."""
    state = ("--state-dir", str(args.output / "api"))
    processes.serve(
        "api",
        ("api", "--port", args.api.rsplit(":", 1)[1], *state),
        lambda: fetch_json(f"{args.api}/status") is not None,
    )
    trainer = (
        *("train", "grpo", "--service", args.engine, "--start", weights, "--json"),
        *("--name", f"tool-calling-{args.seed}", "--seed", str(args.seed)),
        *(
            "--run-dir",
            str(args.output / "grpo"),
            "--learning-rate",
            str(args.rate),
            "--schedule",
            args.schedule,
        ),
        *("--num-steps", str(args.steps), "--batch-size", str(args.groups * args.group_size)),
        *("--api-url", args.api, "--checkpoint-every", "1000"),
    )
    processes.serve("trainer", trainer, lambda: bool((fetch_json(f"{args.api}/status") or {}).get("started")))
    for number in range(args.envs):
        processes.serve(f"env-{number}", serve_env(args, number), lambda: True)
    alarm = threading.Timer(args.ends_s - time.monotonic(), processes.terminate, ["trainer"])
    alarm.daemon = True
    alarm.start()
    told = processes.finish("trainer")
    for name in (*(f"env-{number}" for number in range(args.envs)), "api"):
        processes.stop(name)
    return told


def serve_env(args: argparse.Namespace, number: int) -> tuple[str, ...]:
    settings = {
        "env.seed": 1 + number + 1000 * args.seed,
        "env.categories": json.dumps(args.train_on),
        "env.credit": args.credit,
        "env.max_token_length": args.max_tokens,
        "env.group_size": args.group_size,
        "env.max_num_workers": max(1, args.groups // args.envs),
        "env.tool_pool_size": args.at_once,
        "env.max_batches_offpolicy": 2,
        "env.total_steps": args.steps,
        "env.steps_per_eval": args.steps + 1,
        "env.ensure_scores_are_not_same": False,
        "env.rollout_server_url": args.api,
        "env.use_wandb": False,
        "env.stop_patience_s": 0,
        "openai.base_url": f"{args.engine}/v1",
        "openai.model_name": "policy",
        "openai.server_type": "sglang",
    }
    flags = (word for name, value in settings.items() for word in (f"--{name}", str(value)))
    return ("env", "serve", "tool_calling", *flags)


def run(args: argparse.Namespace, found: dict[str, Any]) -> None:
    """Fills `found`, and writes it down after each stage: what was found stays if a later one fails."""
    began_s = time.monotonic()
    seconds: dict[str, float] = found.setdefault("seconds", {})
    policies: dict[str, Any] = found.setdefault("policies", {})

    def lap(name: str) -> None:
        seconds[name] = round(time.monotonic() - began_s - sum(seconds.values()), 1)
        print(name, seconds[name], "s", flush=True)
        (args.output / "result.json").write_text(json.dumps(found, indent=1) + "\n")

    def measured(name: str, weights: str) -> None:
        policies[name], wrong = asyncio.run(measure(args, weights))
        rows = (json.dumps(row) + "\n" for row in wrong[:MOST_WRONG])
        (args.output / "wrong.jsonl").write_text("".join(rows))
        print(name, {category: f"{one['mean']:.1%}" for category, one in policies[name].items()}, flush=True)
        lap(f"evaluate {name}")

    local = {"TINKER_API_KEY": "tml-local", "WANDB_API_KEY": ""}
    with sigterm_as_interrupt(), ProcessGroup(args.output / "logs", args.output, local) as processes:
        serve_engine(args, processes)
        lap("start")
        measured("base", MODEL)
        start = format_start(args, processes)
        lap("format start")
        measured("format start", start["sampler"])
        learned = reinforce(args, processes, start["weights"])
        found["tokens"] = engine_tokens(args.engine)
        lap("GRPO")
        measured("after GRPO", learned["sampler"])


def engine_tokens(engine_url: str) -> dict[str, int]:
    """Tokens that the engine has sampled and trained on since it was started."""
    page, prefix = fetch(f"{engine_url}/metrics", timeout_s=30.0).decode(), "hermes_engine_"
    values = dict(line.split() for line in page.splitlines() if line.startswith(prefix))
    return {name: int(float(values[f"{prefix}{name}_tokens_total"])) for name in ("sampled", "trained")}


def commit() -> str:
    return subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()


def draw_curves(output: Path) -> None:
    """Rewards are 1 for success, else 0; so the share of successes of one kind is its mean reward."""
    kept = output / "grpo" / "metrics.jsonl"
    if not kept.exists():
        return
    (output / "metrics.jsonl").write_bytes(kept.read_bytes())
    rows = list(read_metrics(kept))
    for name, prefix in (
        ("reward", "reward/mean"),
        *((f"reward-{one}", f"success/{one}") for one in MEASURED),
    ):
        curve = []
        for row in rows:
            values = [value for key, value in row.items() if key.startswith(prefix)]
            if values:
                mean, rollouts = sum(values) / len(values), round(row["data/rollouts"])
                curve.append((int(row["step"]), wilson(round(mean * rollouts), rollouts)))
        (output / f"{name}.svg").write_text(svg(curve))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path, required=True)
    for name in ("steps", "groups", "group-size", "envs", "at-once", "eval-size"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--sft-steps", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=480, help="GRPO ends so long after the start")
    parser.add_argument("--schedule")
    parser.add_argument("--train-on", nargs="+", help="kinds of requests, by weight")
    parser.add_argument("--credit", default="call", choices=("call", "rollout"))
    parser.add_argument("--commit", default=commit(), help="where the checkout is not there to be asked")
    parser.add_argument("--sft-rate", type=float, default=1e-3)
    parser.add_argument("--rate", type=float)
    device = parser.parse_known_args()[0].device
    parser.set_defaults(**(CUDA if device.startswith("cuda") else CPU))
    return parser.parse_args()


def main() -> None:
    args = parse()
    args.ends_s = time.monotonic() + args.seconds
    api_port = FIRST_PORT + 2 * args.seed
    args.api, args.engine = f"http://127.0.0.1:{api_port}", f"http://127.0.0.1:{api_port + 1}"
    args.output = args.output.absolute()
    args.output.mkdir(parents=True)
    settings = {
        name: value for name, value in vars(args).items() if name not in ("output", "ends_s", "api", "engine")
    }
    found = {"settings": settings, "machine": platform.platform()}
    try:
        run(args, found)
    finally:
        draw_curves(args.output)


if __name__ == "__main__":
    main()
