"""Ready trainer configurations for an export: QLoRA of rank 32 on one 24 GB GPU, in today's field names.

The numbers are one recipe for all trainers; each is written in its trainer's terms. The version that a
configuration was checked against is in its first line.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePath

from hermes.core import JSONObject
from hermes.data.export.manifest import stem
from hermes.disk.files import replacing
from hermes.errors import UsageError

BASE_MODEL = "Qwen/Qwen3-8B"
RANK = 32
ALPHA = 64
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "down_proj", "up_proj")
SEQUENCE_TOKENS = 8192
BATCH = 2
ACCUMULATE = 8
EPOCHS = 3
LEARNING_RATE = 2e-4
PREFERENCE_LEARNING_RATE = 5e-6
"""Preference losses start from a model that already answers; steps of supervised size would undo that."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What a configuration is for."""

    train: str
    """Data file, from the folder where the trainer is started."""
    eval: str | None
    form: str
    """Name of the export's format."""
    base_model: str = BASE_MODEL
    quantised: bool = True
    """QLoRA: the base in four bits. False: LoRA on the base as it is."""

    @property
    def loader(self) -> str:
        """The name under which `datasets` reads the file."""
        return "parquet" if self.train.endswith(".parquet") else "json"

    @property
    def output_dir(self) -> str:
        return f"./{self.base_model.rpartition('/')[2].lower()}-hermes-lora"


@dataclass(frozen=True, slots=True)
class TrainerRecipe:
    name: str
    package: str
    checked_with: str
    """Version of the package whose schema the tests hold the fields against."""
    formats: tuple[str, ...]
    """Formats it can train on; the first is the one to take if none is named."""
    render: Callable[[Ask], dict[str, str]]
    """Ending (or whole name, if it starts with a letter) of each file → its text."""
    command: Callable[[str], str]
    """The command that trains, given the configuration's path."""


def check_format(recipe: TrainerRecipe, form: str) -> None:
    if form not in recipe.formats:
        raise UsageError(
            f"the {recipe.name} recipe cannot train on '{form}'", f"--format {' or '.join(recipe.formats)}"
        )


def yaml_text(title: str, fields: JSONObject) -> str:
    """The fields as YAML: scalars and JSON-like collections on one line, lists of objects one a block."""
    lines = [f"# {title}"]
    for name, value in fields.items():
        if isinstance(value, dict):
            lines += [f"{name}:", *(f"  {key}: {_scalar(item)}" for key, item in value.items())]
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            lines.append(f"{name}:")
            for item in value:
                pairs = [f"{key}: {_scalar(inner)}" for key, inner in item.items()]
                lines += [f"  - {pairs[0]}", *(f"    {pair}" for pair in pairs[1:])]
        else:
            lines.append(f"{name}: {_scalar(value)}")
    return "\n".join(lines) + "\n"


def _scalar(value: object) -> str:
    """JSON is YAML; texts that need no quotes go without."""
    if isinstance(value, str) and value.replace("/", "").replace("_", "").replace("-", "").isalnum():
        return value if not value[0].isdigit() and value.lower() not in _SPECIAL else json.dumps(value)
    written = json.dumps(value, ensure_ascii=False)
    if isinstance(value, float) and "." not in written:
        return written.replace("e", ".0e")  # YAML 1.1 readers take 5e-06 for text
    return written


_SPECIAL = {"true", "false", "null", "yes", "no", "on", "off", "none", "~"}


_AXOLOTL_ROLES = {
    "system": ["system"],
    "user": ["human", "user"],
    "assistant": ["gpt", "assistant"],
    "tool": ["tool"],
}


def _render_axolotl(ask: Ask) -> dict[str, str]:
    """Axolotl: `axolotl train FILE`, then `axolotl merge-lora FILE`.

    The export's `train` flags decide which turns are learned; ShareGPT rows are mapped by role instead.
    """
    fields: JSONObject = {
        "base_model": ask.base_model,
        "load_in_4bit": ask.quantised,
        "adapter": "qlora" if ask.quantised else "lora",
        "lora_r": RANK,
        "lora_alpha": ALPHA,
        "lora_dropout": 0.0,
        "lora_target_modules": list(TARGETS),
        "chat_template": "tokenizer_default",
        "datasets": [_axolotl_dataset(ask, ask.train)],
        "sequence_len": SEQUENCE_TOKENS,
        "excess_length_strategy": "drop",
        "sample_packing": True,
        "micro_batch_size": BATCH,
        "gradient_accumulation_steps": ACCUMULATE,
        "num_epochs": EPOCHS,
        "learning_rate": LEARNING_RATE,
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
        fields["test_datasets"] = [{**_axolotl_dataset(ask, ask.eval), "split": "train"}]
    return {".axolotl.yml": yaml_text(f"axolotl {AXOLOTL.checked_with}: axolotl train THIS_FILE", fields)}


def _axolotl_dataset(ask: Ask, path: str) -> JSONObject:
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
        "roles": _AXOLOTL_ROLES,
        "roles_to_train": ["assistant"],
    }


AXOLOTL = TrainerRecipe(
    name="axolotl",
    package="axolotl",
    checked_with="0.19.0",
    formats=("axolotl", "sharegpt", "sharegpt-user-assistant"),
    render=_render_axolotl,
    command=lambda path: f"axolotl train {path}",
)


def _render_unsloth(ask: Ask) -> dict[str, str]:
    """Unsloth: `unsloth train --config FILE`."""
    fields: JSONObject = {
        "model": ask.base_model,
        "data": {"local_dataset": [ask.train], "format_type": "chatml"},
        "training": {
            "training_type": "lora",
            "load_in_4bit": ask.quantised,
            "max_seq_length": SEQUENCE_TOKENS,
            "batch_size": BATCH,
            "gradient_accumulation_steps": ACCUMULATE,
            "num_epochs": EPOCHS,
            "learning_rate": LEARNING_RATE,
            "train_on_completions": True,
            "output_dir": ask.output_dir,
        },
        "lora": {
            "lora_r": RANK,
            "lora_alpha": ALPHA,
            "lora_dropout": 0.0,
            "target_modules": ",".join(TARGETS),
        },
    }
    title = f"unsloth {UNSLOTH.checked_with}: unsloth train --config THIS_FILE"
    return {".unsloth.yml": yaml_text(title, fields)}


UNSLOTH = TrainerRecipe(
    name="unsloth",
    package="unsloth",
    checked_with="2026.10.9",
    formats=("trl-sft",),
    render=_render_unsloth,
    command=lambda path: f"unsloth train --config {path}",
)


TRL_STAGES = {
    "trl-prompt-completion": "sft",
    "trl-sft": "sft",
    "trl-preference": "dpo",
    "trl-unpaired": "kto",
}


def _render_trl(ask: Ask) -> dict[str, str]:
    """TRL: `trl sft --config FILE`, or `dpo`, `kto` and `reward` for what the export holds."""
    stage = TRL_STAGES[ask.form]
    supervised = stage == "sft"
    fields: JSONObject = {
        "model_name_or_path": ask.base_model,
        "dtype": "bfloat16",
        "attn_implementation": "flash_attention_2",
        "load_in_4bit": ask.quantised,
        "bnb_4bit_quant_type": "nf4",
        "use_bnb_nested_quant": ask.quantised,
        "use_peft": True,
        "lora_r": RANK,
        "lora_alpha": ALPHA,
        "lora_dropout": 0.0,
        "lora_target_modules": list(TARGETS),
        "datasets": [{"path": ask.loader, "data_files": ask.train, "split": "train"}],
        "max_length": SEQUENCE_TOKENS,
        "per_device_train_batch_size": BATCH,
        "gradient_accumulation_steps": ACCUMULATE,
        "num_train_epochs": EPOCHS if supervised else 1,
        "learning_rate": LEARNING_RATE if supervised else PREFERENCE_LEARNING_RATE,
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
    title = f"trl {TRL.checked_with}: trl {stage} --config THIS_FILE"
    return {f".trl-{stage}.yml": yaml_text(title, fields)}


TRL = TrainerRecipe(
    name="trl",
    package="trl",
    checked_with="1.16.0",
    formats=tuple(TRL_STAGES),
    render=_render_trl,
    command=lambda path: f"trl {path.rpartition('.trl-')[2].removesuffix('.yml')} --config {path}",
)


_TAGS = {
    "sharegpt": {"user_tag": "human", "assistant_tag": "gpt"},
    "sharegpt-user-assistant": {"user_tag": "user", "assistant_tag": "assistant"},
}


def _render_llama_factory(ask: Ask) -> dict[str, str]:
    """LLaMA-Factory: `llamafactory-cli train FILE`, with the `dataset_info.json` that names the data.

    It trains on ShareGPT rows with the ChatML template, which writes turns as they are: calls, results and
    tool descriptions are in the text already. Its own tool templates would wrap results a second time, and
    its reader of OpenAI messages drops the text beside a call.
    """
    names = {"hermes_train": ask.train} | ({"hermes_eval": ask.eval} if ask.eval else {})
    info = {name: _dataset_entry(ask, path) for name, path in names.items()}
    fields: JSONObject = {
        "model_name_or_path": ask.base_model,
        "stage": "sft",
        "do_train": True,
        "finetuning_type": "lora",
        "lora_rank": RANK,
        "lora_alpha": ALPHA,
        "lora_dropout": 0.0,
        "lora_target": ",".join(TARGETS),
        "dataset_dir": str(PurePath(ask.train).parent),
        "dataset": "hermes_train",
        "template": "chatml",
        "cutoff_len": SEQUENCE_TOKENS,
        "per_device_train_batch_size": BATCH,
        "gradient_accumulation_steps": ACCUMULATE,
        "num_train_epochs": float(EPOCHS),
        "learning_rate": LEARNING_RATE,
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
    title = f"llamafactory {LLAMA_FACTORY.checked_with}: llamafactory-cli train THIS_FILE"
    return {
        ".llama-factory.yml": yaml_text(title, fields),
        "dataset_info.json": json.dumps(info, indent=2) + "\n",
    }


def _dataset_entry(ask: Ask, path: str) -> JSONObject:
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


LLAMA_FACTORY = TrainerRecipe(
    name="llama-factory",
    package="llamafactory",
    checked_with="0.9.5",
    formats=tuple(_TAGS),
    render=_render_llama_factory,
    command=lambda path: f"llamafactory-cli train {path}",
)


RECIPES: dict[str, TrainerRecipe] = {each.name: each for each in (AXOLOTL, UNSLOTH, TRL, LLAMA_FACTORY)}


def get_recipe(name: str) -> TrainerRecipe:
    if name not in RECIPES:
        raise UsageError(f"no recipe '{name}'", f"one of: {', '.join(RECIPES)}")
    return RECIPES[name]


def write_recipe(recipe: TrainerRecipe, ask: Ask, output: Path) -> list[Path]:
    """Writes the configuration's files beside the export; the first one is what the trainer is given."""
    paths = []
    for name, text in recipe.render(ask).items():
        path = output.with_name(f"{stem(output)}{name}" if name.startswith(".") else name)
        with replacing(path) as file:
            file.write(text)
        paths.append(path)
    return paths
