"""LLaMA-Factory: `llamafactory-cli train FILE`, with the `dataset_info.json` that names the data.

It trains on ShareGPT rows with the ChatML template, which writes turns as they are: calls, results and tool
descriptions are in the text already. Its own tool templates would wrap results a second time, and its
reader of OpenAI messages drops the text beside a call.
"""

from __future__ import annotations

import json
from pathlib import PurePath

from hermes.core import JSONObject
from hermes.data.recipes import base
from hermes.data.recipes.base import Ask, TrainerRecipe

_TAGS = {
    "sharegpt": {"user_tag": "human", "assistant_tag": "gpt"},
    "sharegpt-user-assistant": {"user_tag": "user", "assistant_tag": "assistant"},
}


def render(ask: Ask) -> dict[str, str]:
    names = {"hermes_train": ask.train} | ({"hermes_eval": ask.eval} if ask.eval else {})
    info = {name: _entry(ask, path) for name, path in names.items()}
    fields: JSONObject = {
        "model_name_or_path": ask.base_model,
        "stage": "sft",
        "do_train": True,
        "finetuning_type": "lora",
        "lora_rank": base.RANK,
        "lora_alpha": base.ALPHA,
        "lora_dropout": 0.0,
        "lora_target": ",".join(base.TARGETS),
        "dataset_dir": str(PurePath(ask.train).parent),
        "dataset": "hermes_train",
        "template": "chatml",
        "cutoff_len": base.SEQUENCE_TOKENS,
        "per_device_train_batch_size": base.BATCH,
        "gradient_accumulation_steps": base.ACCUMULATE,
        "num_train_epochs": float(base.EPOCHS),
        "learning_rate": base.LEARNING_RATE,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 10,
        "bf16": True,
        "flash_attn": "fa2",
        "seed": 42,
        "output_dir": ask.output_dir,
    }
    if ask.quantised:
        fields |= {"quantization_bit": 4, "quantization_method": "bnb"}
    if ask.eval is not None:
        fields |= {"eval_dataset": "hermes_eval", "eval_strategy": "epoch"}
    title = f"llamafactory {RECIPE.checked_with}: llamafactory-cli train THIS_FILE"
    return {
        ".llama-factory.yml": base.yaml_text(title, fields),
        "dataset_info.json": json.dumps(info, indent=2) + "\n",
    }


def _entry(ask: Ask, path: str) -> JSONObject:
    return {
        "file_name": PurePath(path).name,
        "formatting": "sharegpt",
        "columns": {"messages": "conversations"},
        "tags": {
            "role_tag": "from",
            "content_tag": "value",
            "system_tag": "system",
            "observation_tag": "tool",
            "function_tag": "function_call",
            **_TAGS[ask.form],
        },
    }


RECIPE = TrainerRecipe(
    name="llama-factory",
    package="llamafactory",
    checked_with="0.9.5",
    formats=tuple(_TAGS),
    render=render,
    command=lambda path: f"llamafactory-cli train {path}",
)
