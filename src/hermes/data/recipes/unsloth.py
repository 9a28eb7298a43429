"""Unsloth: `unsloth train --config FILE`."""

from __future__ import annotations

from hermes.core import JSONObject
from hermes.data.recipes import base
from hermes.data.recipes.base import Ask, TrainerRecipe


def render(ask: Ask) -> dict[str, str]:
    fields: JSONObject = {
        "model": ask.base_model,
        "data": {"local_dataset": [ask.train], "format_type": "chatml"},
        "training": {
            "training_type": "lora",
            "load_in_4bit": ask.quantised,
            "max_seq_length": base.SEQUENCE_TOKENS,
            "batch_size": base.BATCH,
            "gradient_accumulation_steps": base.ACCUMULATE,
            "num_epochs": base.EPOCHS,
            "learning_rate": base.LEARNING_RATE,
            "train_on_completions": True,
            "output_dir": ask.output_dir,
        },
        "lora": {
            "lora_r": base.RANK,
            "lora_alpha": base.ALPHA,
            "lora_dropout": 0.0,
            "target_modules": ",".join(base.TARGETS),
        },
    }
    title = f"unsloth {RECIPE.checked_with}: unsloth train --config THIS_FILE"
    return {".unsloth.yml": base.yaml_text(title, fields)}


RECIPE = TrainerRecipe(
    name="unsloth",
    package="unsloth",
    checked_with="2026.10.9",
    formats=("trl-sft",),
    render=render,
    command=lambda path: f"unsloth train --config {path}",
)
