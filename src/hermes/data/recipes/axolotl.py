"""Axolotl: `axolotl train FILE`, then `axolotl merge-lora FILE`.

The export's `train` flags decide which turns are learned; ShareGPT rows are mapped by role instead.
"""

from __future__ import annotations

from hermes.core import JSONObject
from hermes.data.recipes import base
from hermes.data.recipes.base import Ask, TrainerRecipe

_ROLES = {
    "system": ["system"],
    "user": ["human", "user"],
    "assistant": ["gpt", "assistant"],
    "tool": ["tool"],
}


def render(ask: Ask) -> dict[str, str]:
    fields: JSONObject = {
        "base_model": ask.base_model,
        "load_in_4bit": ask.quantised,
        "adapter": "qlora" if ask.quantised else "lora",
        "lora_r": base.RANK,
        "lora_alpha": base.ALPHA,
        "lora_dropout": 0.0,
        "lora_target_modules": list(base.TARGETS),
        "chat_template": "tokenizer_default",
        "datasets": [_dataset(ask, ask.train)],
        "sequence_len": base.SEQUENCE_TOKENS,
        "excess_length_strategy": "drop",
        "sample_packing": True,
        "micro_batch_size": base.BATCH,
        "gradient_accumulation_steps": base.ACCUMULATE,
        "num_epochs": base.EPOCHS,
        "learning_rate": base.LEARNING_RATE,
        "lr_scheduler": "cosine",
        "warmup_ratio": 0.03,
        "optimizer": "adamw_torch_fused",
        "bf16": "auto",
        "gradient_checkpointing": True,
        "attn_implementation": "flash_attention_2",
        "seed": 42,
        "output_dir": ask.output_dir,
    }
    if ask.eval is not None:
        fields["test_datasets"] = [{**_dataset(ask, ask.eval), "split": "train"}]
    return {".axolotl.yml": base.yaml_text(f"axolotl {RECIPE.checked_with}: axolotl train THIS_FILE", fields)}


def _dataset(ask: Ask, path: str) -> JSONObject:
    entry: JSONObject = {"path": path, "ds_type": ask.loader, "type": "chat_template"}
    if ask.form == "axolotl":
        return {
            **entry,
            "field_messages": "messages",
            "field_tools": "tools",
            "message_field_training": "train",
            "roles_to_train": ["assistant"],
        }
    return {
        **entry,
        "field_messages": "conversations",
        "message_property_mappings": {"role": "from", "content": "value"},
        "roles": _ROLES,
        "roles_to_train": ["assistant"],
    }


RECIPE = TrainerRecipe(
    name="axolotl",
    package="axolotl",
    checked_with="0.19.0",
    formats=("axolotl", "sharegpt", "sharegpt-user-assistant"),
    render=render,
    command=lambda path: f"axolotl train {path}",
)
