"""Ready trainer configurations for an export: QLoRA of rank 32 on one 24 GB GPU, in today's field names.

The numbers are one recipe for all trainers; each module writes it in its trainer's terms. The version that a
configuration was checked against is in its first line.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from hermes.core import JSONObject
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
