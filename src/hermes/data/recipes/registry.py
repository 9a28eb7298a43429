"""Every recipe by its name, and writing one beside an export."""

from __future__ import annotations

from pathlib import Path

from hermes.data.export.manifest import stem
from hermes.data.recipes import axolotl, llama_factory, trl, unsloth
from hermes.data.recipes.base import Ask, TrainerRecipe
from hermes.disk.files import replacing
from hermes.errors import UsageError

RECIPES: dict[str, TrainerRecipe] = {
    each.name: each for each in (axolotl.RECIPE, unsloth.RECIPE, trl.RECIPE, llama_factory.RECIPE)
}


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
