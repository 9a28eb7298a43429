"""Examples for `--help`, by command. A test parses every one of them with the command it stands under."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {
    "api": ("hermes api --port 8100",),
    "batch": (
        "hermes batch --dataset-file tasks.jsonl --run-name first",
        "hermes batch --dataset-file tasks.jsonl --run-name four --max-cost 2",
        "hermes batch status first",
    ),
    "bench": ("hermes bench --dataset-file tasks.jsonl --models hermes/smollm2,vllm/mine",),
    "bug-report": ("hermes bug-report",),
    "compress": (
        "hermes compress data.jsonl --target-max-tokens 8000",
        "hermes compress 'run=first reward>=0.5' --output short.jsonl",
    ),
    "config": (
        "hermes config show",
        "hermes config set model openrouter/some/model",
        "hermes config set OPENROUTER_API_KEY",
    ),
    "doctor": ("hermes doctor",),
    "engine": (
        "hermes engine serve --model hermes/smollm2",
        "hermes engine models",
    ),
    "engine serve": ("hermes engine serve --model hermes/smollm2 --port 8001",),
    "env": (
        "hermes env list",
        "hermes env check calculator",
        "hermes env debug calculator",
        "hermes env process calculator --openai.base_url http://127.0.0.1:8000/v1",
    ),
    "export": (
        "hermes export --output data.jsonl",
        "hermes export --format trl-preference --min-rating 4 --output pairs.jsonl",
        "hermes export --id 01M7M0MZ --id last --output picked.jsonl",
        "hermes export --dry-run",
    ),
    "import": ("hermes import conversations.jsonl",),
    "improve": ("hermes improve --method dpo",),
    "memory": ("hermes memory list", "hermes memory add 'Answers should be short.'"),
    "models": ("hermes models",),
    "policy": ("hermes policy list", "hermes policy promote previous"),
    "quickstart": ("hermes quickstart",),
    "rate": ("hermes rate last good --comment 'clear'", "hermes rate queue", "hermes rate stats"),
    "record": (
        "hermes record -- claude -p 'fix the tests'",
        "hermes record --base-url http://127.0.0.1:8001/v1 --model policy -- codex",
        "hermes record --install",
    ),
    "record serve": ("hermes record serve --port 8790",),
    "reward": ("hermes reward score my-reward-model last",),
    "rl": (
        "hermes rl config --env calculator",
        "hermes rl start --env calculator",
        "hermes rl status RUN",
        'hermes rl "Train SmolLM2 on calculator"',
    ),
    "skills": (
        "hermes skills browse axolotl",
        "hermes skills view axolotl",
        "hermes skills check axolotl",
    ),
    "tools": ("hermes tools",),
    "train": (
        "hermes train sft data.jsonl",
        "hermes train dpo pairs.jsonl",
        "hermes train grpo --with-engine",
    ),
    "train sft": ("hermes train sft data.jsonl --epochs 3", "hermes train sft --min-rating 4"),
    "train dpo": ("hermes train dpo pairs.jsonl",),
    "train kto": ("hermes train kto rated.jsonl",),
    "train reward": ("hermes train reward pairs.jsonl",),
    "train grpo": ("hermes train grpo --with-engine --num-steps 20",),
    "trajectories": (
        "hermes trajectories list --outcome completed --since 7d",
        "hermes trajectories show last",
        "hermes trajectories search calculator error",
    ),
    "web": ("hermes web", "hermes web --port 0 --no-open"),
}
"""Command, without `hermes` → command lines."""


def examples_text(name: str) -> str | None:
    """The examples of a command as the end of its help; None if it has none."""
    lines = EXAMPLES.get(name)
    return None if lines is None else "Examples:\n\n\b\n" + "\n".join(f"  {line}" for line in lines)
