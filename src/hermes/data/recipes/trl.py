"""TRL: `trl sft --config FILE`, or `dpo`, `kto` and `reward` for what the export holds."""

from __future__ import annotations

from hermes.core import JSONObject
from hermes.data.recipes import base
from hermes.data.recipes.base import Ask, TrainerRecipe

STAGES = {"trl-sft": "sft", "trl-preference": "dpo", "trl-unpaired": "kto"}


def render(ask: Ask) -> dict[str, str]:
    stage = STAGES[ask.form]
    supervised = stage == "sft"
    fields: JSONObject = {
        "model_name_or_path": ask.base_model,
        "dtype": "bfloat16",
        "attn_implementation": "flash_attention_2",
        "load_in_4bit": ask.quantised,
        "bnb_4bit_quant_type": "nf4",
        "use_bnb_nested_quant": ask.quantised,
        "use_peft": True,
        "lora_r": base.RANK,
        "lora_alpha": base.ALPHA,
        "lora_dropout": 0.0,
        "lora_target_modules": list(base.TARGETS),
        "datasets": [{"path": ask.loader, "data_files": ask.train, "split": "train"}],
        "max_length": base.SEQUENCE_TOKENS,
        "per_device_train_batch_size": base.BATCH,
        "gradient_accumulation_steps": base.ACCUMULATE,
        "num_train_epochs": base.EPOCHS if supervised else 1,
        "learning_rate": base.LEARNING_RATE if supervised else base.PREFERENCE_LEARNING_RATE,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 0.03,
        "gradient_checkpointing": True,
        "bf16": True,
        "logging_steps": 10,
        "save_strategy": "epoch",
        "seed": 42,
        "output_dir": ask.output_dir if supervised else f"{ask.output_dir}-{stage}",
    }
    if supervised:
        fields["assistant_only_loss"] = True
    title = f"trl {RECIPE.checked_with}: trl {stage} --config THIS_FILE"
    return {f".trl-{stage}.yml": base.yaml_text(title, fields)}


RECIPE = TrainerRecipe(
    name="trl",
    package="trl",
    checked_with="1.16.0",
    formats=tuple(STAGES),
    render=render,
    command=lambda path: f"trl {path.rpartition('.trl-')[2].removesuffix('.yml')} --config {path}",
)
