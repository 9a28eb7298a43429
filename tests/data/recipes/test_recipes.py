"""Recipes against the trainers they are for: every field exists, and means what the recipe says.

The fields are held against lists recorded from the packages (scripts/recipe_keys.py), and against the
packages themselves where they are installed.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from hermes.data import recipes
from hermes.data.formats.base import ToolCallStyle
from hermes.data.formats.registry import FORMATS
from hermes.data.recipes import RECIPES, Ask, get_recipe, write_recipe
from hermes.errors import UsageError
from hermes.models.local.bundled import model_folder
from tests import records
from tests.data import made
from tests.data.recipes import real

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "down_proj", "up_proj")
KEYS = Path(__file__).parent / "keys"
ASKS = [
    (name, Ask(f"data.train{ending}", f"data.eval{ending}", form))
    for name, recipe in RECIPES.items()
    for form in recipe.formats
    for ending in (".jsonl", ".parquet")
]
IDS = [f"{name}-{ask.form}{Path(ask.train).suffix}" for name, ask in ASKS]


def configuration(name: str, ask: Ask) -> dict[str, Any]:
    """The trainer's file, read as YAML."""
    text = next(text for ending, text in RECIPES[name].render(ask).items() if ending.endswith(".yml"))
    found: dict[str, Any] = YAML(typ="safe").load(text)
    return found


def recorded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((KEYS / f"{RECIPES[name].package}.json").read_text("utf-8"))
    return found


@pytest.mark.parametrize(("name", "ask"), ASKS, ids=IDS)
def test_every_field_exists_in_the_version_that_the_recipe_names(name: str, ask: Ask) -> None:
    keys = recorded(name)
    assert keys["version"] == RECIPES[name].checked_with
    found = configuration(name, ask)
    known = keys["keys"]
    if name == "trl":
        assert set(found) <= set(known[RECIPES["trl"].stages[ask.form]])
        assert all(set(entry) <= set(known["datasets"]) for entry in found["datasets"])
        return
    assert set(found) <= set(known["top"])
    if name == "axolotl":
        entries = found["datasets"] + found["test_datasets"]
        assert all(set(entry) <= set(known["datasets"]) for entry in entries)
    if name == "unsloth":
        assert all(set(section) <= set(known[key]) for key, section in found.items() if key != "model")
    if name == "llama-factory":
        info = json.loads(RECIPES[name].render(ask)["dataset_info.json"])
        for entry in info.values():
            asked = set(entry) - {"file_name", "columns", "tags"} | set(entry["columns"]) | set(entry["tags"])
            assert asked <= set(known["dataset_info"])


@pytest.mark.parametrize("name", RECIPES)
def test_the_recorded_fields_are_those_of_the_installed_package(name: str) -> None:
    package = RECIPES[name].package
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
    keys = recorded(name)
    if version != keys["version"]:
        pytest.skip(f"recorded from {package} {keys['version']}, installed is {version}")
    assert getattr(real, f"{package}_keys")() == keys["keys"]


@pytest.mark.parametrize(("name", "ask"), ASKS, ids=IDS)
def test_it_is_the_same_recipe_in_every_trainers_words(name: str, ask: Ask) -> None:
    found = configuration(name, ask)
    flat = {**found, **{k: v for section in ("training", "lora") for k, v in found.get(section, {}).items()}}
    rank = next(flat[key] for key in ("lora_r", "lora_rank") if key in flat)
    targets = next(
        flat[key] for key in ("lora_target_modules", "lora_target", "target_modules") if key in flat
    )
    length = next(
        flat[key] for key in ("sequence_len", "max_length", "cutoff_len", "max_seq_length") if key in flat
    )
    batch = next(
        flat[key] for key in ("micro_batch_size", "per_device_train_batch_size", "batch_size") if key in flat
    )
    assert (rank, flat["lora_alpha"], length, batch) == (32, 64, 8192, 2)
    assert flat["gradient_accumulation_steps"] == 8
    assert set(targets.split(",") if isinstance(targets, str) else targets) == set(TARGETS)
    if RECIPES[name].stages[ask.form] != "sft":
        assert flat["learning_rate"] == 5e-6
    else:
        assert flat["learning_rate"] == 2e-4
        assert next(flat[key] for key in ("num_epochs", "num_train_epochs") if key in flat) == 3
    assert flat.get("load_in_4bit") or flat.get("quantization_bit") == 4
    assert "Qwen3-8B" in json.dumps(found)


def test_the_recipe_for_trl_names_the_rows_that_are_held_out(tmp_path: Path) -> None:
    ask = Ask("e.train.jsonl", "e.eval.jsonl", "trl-sft", base_model="some/model", quantised=False)
    (path,) = write_recipe(get_recipe("trl"), ask, tmp_path / "e.train.jsonl")
    assert "# Held out: e.eval.jsonl." in path.read_text() and 'data_files="e.eval.jsonl"' in path.read_text()


@pytest.mark.parametrize("form", RECIPES["trl"].formats)
def test_trl_itself_parses_its_recipe(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trl import DPOConfig, KTOConfig, ModelConfig, ScriptArguments, SFTConfig, TrlParser
    from trl.scripts.utils import DatasetMixtureConfig

    config = {"sft": SFTConfig, "dpo": DPOConfig, "kto": KTOConfig}[RECIPES["trl"].stages[form]]
    output = tmp_path / "data.parquet"
    ask = Ask(str(output), None, form, base_model="some/model", quantised=False)
    (path,) = write_recipe(get_recipe("trl"), ask, output)
    text = path.read_text().replace("bf16: true", "bf16: false")  # no GPU here to have it
    path.write_text(text)
    monkeypatch.setattr(sys, "argv", ["trl", "--config", str(path)])
    parser = TrlParser((ScriptArguments, config, ModelConfig, DatasetMixtureConfig))
    _, training, model, data = parser.parse_args_and_config()
    assert (model.lora_r, model.lora_alpha, model.use_peft) == (32, 64, True)
    assert (data.datasets[0].path, data.datasets[0].data_files) == ("parquet", str(output))
    assert training.gradient_accumulation_steps == 8


@pytest.mark.parametrize("form", RECIPES["axolotl"].formats)
def test_axolotl_itself_accepts_its_datasets(form: str) -> None:
    schemas = pytest.importorskip("axolotl.utils.schemas.datasets", reason="pip install --no-deps axolotl")
    found = configuration("axolotl", Ask("data.jsonl", None, form))
    entry = schemas.SFTDataset.model_validate(found["datasets"][0])
    assert entry.type == "chat_template"
    assert FORMATS[form].columns[1].name == entry.field_messages


@pytest.mark.parametrize("form", ["axolotl", "sharegpt"])
def test_axolotl_itself_learns_what_the_assistant_said(form: str, bundled_home: Path) -> None:
    strategy = pytest.importorskip("axolotl.prompt_strategies.chat_template", reason="pip install axolotl")
    from axolotl.utils.dict import DictDefault
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_folder(bundled_home))
    (row,) = FORMATS[form].write(made.example(records.conversation()), ToolCallStyle.TEXT)
    entry = configuration("axolotl", Ask("data.jsonl", None, form))["datasets"][0]
    settings = {"chat_template": "tokenizer_default", "sequence_len": 8192, "datasets": [entry]}
    loaded = strategy.load(tokenizer, DictDefault(settings), ds_cfg=DictDefault(entry))
    labels = loaded.tokenize_prompt(row)["labels"]
    assert tokenizer.decode([token for token in labels if token != -100]) == (
        "<think>\nA sum.\n</think>\nLet me see.\n<tool_call>\n"
        '{"name": "calculator", "arguments": {"expression": "2 + 2"}}\n</tool_call><|im_end|>'
        "It is 4.<|im_end|>"
    )


def test_unsloth_itself_accepts_its_recipe() -> None:
    try:
        config = real.unsloth_config()
    except ImportError as error:
        pytest.skip(str(error))
    found = config.model_validate(configuration("unsloth", Ask("data.jsonl", None, "trl-sft")))
    assert (found.lora.lora_r, found.training.num_epochs) == (32, 3)


def test_a_format_that_the_trainer_cannot_read_is_refused_with_those_it_can() -> None:
    with pytest.raises(UsageError) as refused:
        recipes.check_format(get_recipe("unsloth"), "atif")
    assert refused.value.hint == "--format trl-sft"
    with pytest.raises(UsageError, match="no recipe 'x'"):
        get_recipe("x")
