"""Ready trainer configurations for an export: QLoRA of rank 32 on one 24 GB GPU, in today's field names.

One recipe for all trainers, in `recipe_templates` as each trainer reads it. The version that a configuration
was checked against is in its first line.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path, PurePath

from hermes.data.export.manifest import stem
from hermes.disk.files import replacing
from hermes.errors import UsageError

BASE_MODEL = "Qwen/Qwen3-8B"


@dataclass(frozen=True, slots=True)
class Ask:
    """The data, model and form that a configuration is for."""

    train: str
    """Data file, from the folder where the trainer is started."""
    eval: str | None
    form: str
    """Name of the export's format."""
    base_model: str = BASE_MODEL
    quantised: bool = True
    """QLoRA: the base in four bits. False: LoRA on the base as it is."""


@dataclass(frozen=True, slots=True)
class TrainerRecipe:
    name: str
    package: str
    checked_with: str
    """Version of the package whose schema the tests hold the fields against."""
    stages: dict[str, str]
    """Formats it can train on, and what the trainer does with each; the first is taken if none is named."""
    start: str
    """The command that trains, given the stage and the configuration's path."""

    @property
    def formats(self) -> tuple[str, ...]:
        return tuple(self.stages)

    def command(self, form: str, path: Path) -> str:
        return f"{self.start.format(stage=self.stages[form])} {path}"

    def render(self, ask: Ask) -> dict[str, str]:
        """Ending (or whole name, if it starts with a letter) of each file → its text."""
        from jinja2 import Environment, StrictUndefined

        environment = Environment(undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
        source = resources.files("hermes.data").joinpath(f"recipe_templates/{self.name}.yml.jinja")
        stage = self.stages[ask.form]
        text = environment.from_string(source.read_text("utf-8")).render(
            **asdict(ask),
            version=self.checked_with,
            stage=stage,
            folder=str(PurePath(ask.train).parent),
            loader="parquet" if ask.train.endswith(".parquet") else "json",
            output_dir=f"./{ask.base_model.rpartition('/')[2].lower()}-hermes-lora",
        )
        files = {f".{self.name}-{stage}.yml" if self.name == "trl" else f".{self.name}.yml": text}
        if self.name == "llama-factory":
            files["dataset_info.json"] = _dataset_info(ask)
        return files


def _dataset_info(ask: Ask) -> str:
    """LLaMA-Factory's list of data sets, which names the files."""
    user, assistant = ("human", "gpt") if ask.form == "sharegpt" else ("user", "assistant")
    tags = {"role_tag": "from", "content_tag": "value", "user_tag": user, "assistant_tag": assistant}
    tags |= {"system_tag": "system", "observation_tag": "tool", "function_tag": "function_call"}
    paths = {"hermes_train": ask.train} | ({"hermes_eval": ask.eval} if ask.eval else {})
    entries = {
        name: {
            "file_name": PurePath(path).name,
            "formatting": "sharegpt",
            "columns": {"messages": "conversations"},
            "tags": tags,
        }
        for name, path in paths.items()
    }
    return json.dumps(entries, indent=2) + "\n"


_SHAREGPT = {"sharegpt": "sft", "sharegpt-user-assistant": "sft"}
_TRL = {"trl-prompt-completion": "sft", "trl-sft": "sft", "trl-preference": "dpo", "trl-unpaired": "kto"}
RECIPES = {
    recipe.name: recipe
    for recipe in (
        TrainerRecipe("axolotl", "axolotl", "0.19.0", {"axolotl": "sft", **_SHAREGPT}, "axolotl train"),
        TrainerRecipe("unsloth", "unsloth", "2026.10.9", {"trl-sft": "sft"}, "unsloth train --config"),
        TrainerRecipe("trl", "trl", "1.16.0", _TRL, "trl {stage} --config"),
        TrainerRecipe("llama-factory", "llamafactory", "0.9.5", _SHAREGPT, "llamafactory-cli train"),
    )
}


def get_recipe(name: str) -> TrainerRecipe:
    if name not in RECIPES:
        raise UsageError(f"no recipe '{name}'", f"one of: {', '.join(RECIPES)}")
    return RECIPES[name]


def check_format(recipe: TrainerRecipe, form: str) -> None:
    if form not in recipe.formats:
        raise UsageError(
            f"the {recipe.name} recipe cannot train on '{form}'", f"--format {' or '.join(recipe.formats)}"
        )


def write_recipe(recipe: TrainerRecipe, ask: Ask, output: Path) -> list[Path]:
    """Writes the configuration's files beside the export; the first one is what the trainer is given."""
    paths = []
    for name, text in recipe.render(ask).items():
        path = output.with_name(f"{stem(output)}{name}" if name.startswith(".") else name)
        with replacing(path) as file:
            file.write(text)
        paths.append(path)
    return paths
