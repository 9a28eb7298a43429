"""Function calling on functions never seen: a format-only start, GRPO by the whole stack, held-out success.

    python bench/tool_calling.py --device cuda --output DIR [--steps 80 --groups 32 --group-size 16 --envs 4]

Engine, trajectory API, trainer and environments are processes of their own, as in a run. The start is a few
supervised steps on gold calls to functions of the training part: enough for the form of a call. What is
measured is greedy success on requests whose functions are in no training item. Writes DIR/result.json,
metrics.jsonl, reward.png and the processes' logs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from hermes.core import Role
from hermes.data.formats.messages import strict_message
from hermes.envs.builtin.tool_calling import ToolCallingConfig, ToolCallingEnv
from hermes.envs.stats import interval
from hermes.envs.tasks.split import Split
from hermes.quickstart import probes
from hermes.quickstart.chart import png
from hermes.quickstart.evaluate import on_engine
from hermes.quickstart.processes import Crew, terminated_like_interrupted
from hermes.rl.part import ask
from hermes.rl.run import read_metrics

MODEL = "hermes/smollm2"
MEASURED = ("simple", "parallel")
ENGINE, API = "http://127.0.0.1:8471", "http://127.0.0.1:8470"


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
    return ToolCallingEnv(config, [on_engine(ENGINE, weights, args.at_once)])


def write_gold(env: ToolCallingEnv, rows: int, into: Path) -> None:
    """Gold calls to functions of the training part, as OpenAI messages."""
    with into.open("w") as file:
        for item in islice(env.generate(Split.TRAIN), rows):
            said = [message for message in env.gold_messages(item) if message.role is not Role.TOOL]
            tools = [{"type": "function", "function": function.schema} for function in item.offered]
            row = {"messages": [strict_message(message) for message in said], "tools": tools}
            file.write(json.dumps(row) + "\n")


async def measure(args: argparse.Namespace, weights: str) -> dict[str, Any]:
    """Greedy success on held-out functions, category by category."""
    found = {}
    for category in MEASURED:
        env = environment(args, [category], weights)
        try:
            await env.setup()
            items = await env.eval_items()
            scored = await asyncio.gather(*(env.run_item(item, temperature=0.0) for item in items))
            found[category] = asdict(interval([float(one.reward.success) for one in scored]))
        finally:
            await env.close()
    return found


def serve_engine(args: argparse.Namespace, crew: Crew) -> None:
    flags = ("--model", MODEL, "--device", args.device, "--port", ENGINE.rsplit(":", 1)[1])
    state = ("--state-dir", str(args.output / "engine"))
    crew.serve("engine", ("engine", "serve", *flags, *state), lambda: ask(f"{ENGINE}/health") is not None)


def format_start(args: argparse.Namespace, crew: Crew) -> dict[str, Any]:
    """The few supervised steps; what `hermes train sft` says of them."""
    rows = args.output / "format.jsonl"
    write_gold(environment(args, args.train_on, MODEL), args.sft_steps * 16, rows)
    return crew.run(
        "sft",
        (
            *("train", "sft", str(rows), "--base-url", ENGINE, "--name", "format", "--json"),
            *("--run-dir", str(args.output / "sft"), "--learning-rate", str(args.sft_rate)),
            *("--max-steps", str(args.sft_steps)),
        ),
    )


def reinforce(args: argparse.Namespace, crew: Crew, weights: str) -> dict[str, Any]:
    """GRPO by api, trainer and environments; what `hermes train grpo` says at its end."""
    state = ("--state-dir", str(args.output / "api"))
    crew.serve(
        "api",
        ("api", "--port", API.rsplit(":", 1)[1], *state),
        lambda: ask(f"{API}/status") is not None,
    )
    trainer = (
        *("train", "grpo", "--base-url", ENGINE, "--start", weights, "--name", "tool-calling", "--json"),
        *(
            "--run-dir",
            str(args.output / "grpo"),
            "--learning-rate",
            str(args.rate),
            "--schedule",
            args.schedule,
        ),
        *("--num-steps", str(args.steps), "--batch-size", str(args.groups * args.group_size)),
        *("--api-url", API, "--checkpoint-every", "1000"),
    )
    crew.serve("trainer", trainer, lambda: bool((ask(f"{API}/status") or {}).get("started")))
    for number in range(args.envs):
        crew.serve(f"env-{number}", serve_env(args, number), lambda: True)
    alarm = threading.Timer(args.ends_s - time.monotonic(), crew.ask_to_end, ["trainer"])
    alarm.daemon = True
    alarm.start()
    told = crew.finish("trainer")
    for name in (*(f"env-{number}" for number in range(args.envs)), "api"):
        crew.stop(name)
    return told


def serve_env(args: argparse.Namespace, number: int) -> tuple[str, ...]:
    settings = {
        "env.seed": 1 + number,
        "env.categories": json.dumps(args.train_on),
        "env.max_token_length": args.max_tokens,
        "env.group_size": args.group_size,
        "env.max_num_workers": max(1, args.groups // args.envs),
        "env.tool_pool_size": args.at_once,
        "env.max_batches_offpolicy": 2,
        "env.total_steps": args.steps,
        "env.steps_per_eval": args.steps + 1,
        "env.ensure_scores_are_not_same": False,
        "env.rollout_server_url": API,
        "env.use_wandb": False,
        "env.stop_patience_s": 0,
        "openai.base_url": f"{ENGINE}/v1",
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
        policies[name] = asyncio.run(measure(args, weights))
        print(name, {category: f"{one['mean']:.1%}" for category, one in policies[name].items()}, flush=True)
        lap(f"evaluate {name}")

    local = {"TINKER_API_KEY": "tml-local", "WANDB_API_KEY": ""}
    with terminated_like_interrupted(), Crew(args.output / "logs", args.output, local) as crew:
        serve_engine(args, crew)
        lap("start")
        measured("base", MODEL)
        start = format_start(args, crew)
        lap("format start")
        measured("format start", start["sampler"])
        learned = reinforce(args, crew, start["weights"])
        found["tokens"] = asdict(probes.tokens(ENGINE))
        lap("GRPO")
        measured("after GRPO", learned["sampler"])


def commit() -> str:
    return subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path, required=True)
    for name, default in (("steps", 80), ("groups", 32), ("group-size", 16), ("envs", 1), ("at-once", 512)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in (("eval-size", 256), ("max-tokens", 256), ("sft-steps", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--seconds", type=float, default=480, help="GRPO ends so long after the start")
    parser.add_argument("--schedule", default="constant")
    parser.add_argument("--train-on", nargs="+", default=list(MEASURED), help="kinds of requests, by weight")
    parser.add_argument("--commit", default=commit(), help="where the checkout is not there to be asked")
    parser.add_argument("--sft-rate", type=float, default=1e-3)
    parser.add_argument("--rate", type=float, default=3e-4)
    args = parser.parse_args()
    args.ends_s = time.monotonic() + args.seconds
    args.output = args.output.absolute()
    args.output.mkdir(parents=True)
    settings = {name: value for name, value in vars(args).items() if name not in ("output", "ends_s")}
    found = {"settings": settings, "machine": platform.platform()}
    run(args, found)
    metrics = args.output / "grpo" / "metrics.jsonl"
    (args.output / "metrics.jsonl").write_bytes(metrics.read_bytes())
    curve = [(int(row["step"]), row["reward/mean"]) for row in read_metrics(metrics) if "reward/mean" in row]
    (args.output / "reward.png").write_bytes(png(curve))


if __name__ == "__main__":
    main()
