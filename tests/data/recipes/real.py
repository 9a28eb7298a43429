"""The trainers' own configuration schemas: which fields each part of a configuration may have."""

from __future__ import annotations

import ast
import importlib.util
import os
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any


def axolotl_keys() -> dict[str, list[str]]:
    from axolotl.utils.schemas.config import AxolotlInputConfig
    from axolotl.utils.schemas.datasets import SFTDataset

    return {"top": sorted(AxolotlInputConfig.model_fields), "datasets": sorted(SFTDataset.model_fields)}


def llamafactory_keys() -> dict[str, list[str]]:
    os.environ.setdefault("DISABLE_VERSION_CHECK", "1")
    from llamafactory.hparams import parser

    top = {each.name for args in parser._TRAIN_ARGS for each in fields(args)}
    source = Path(parser.__file__).parents[1] / "data/parser.py"  # importing it needs torchaudio
    classes = [node for node in ast.parse(source.read_text("utf-8")).body if isinstance(node, ast.ClassDef)]
    (attributes,) = [node for node in classes if node.name == "DatasetAttr"]
    named = [node.target for node in attributes.body if isinstance(node, ast.AnnAssign)]
    return {"top": sorted(top), "dataset_info": sorted(n.id for n in named if isinstance(n, ast.Name))}


def trl_keys() -> dict[str, list[str]]:
    from trl import DPOConfig, KTOConfig, ModelConfig, ScriptArguments, SFTConfig
    from trl.scripts.utils import DatasetConfig, DatasetMixtureConfig

    shared = (ScriptArguments, ModelConfig, DatasetMixtureConfig)
    stages = {"sft": SFTConfig, "dpo": DPOConfig, "kto": KTOConfig}
    return {
        **{stage: _names(config, *shared) for stage, config in stages.items()},
        "datasets": _names(DatasetConfig),
    }


def unsloth_keys() -> dict[str, list[str]]:
    config = unsloth_config()
    sections = {name: info.annotation for name, info in config.model_fields.items()}
    return {
        "top": sorted(sections),
        **{
            name: sorted(section.model_fields)
            for name, section in sections.items()
            if hasattr(section, "model_fields")
        },
    }


def unsloth_config() -> Any:
    """Its configuration model, read from its file: importing the package would look for a GPU."""
    package = importlib.util.find_spec("unsloth_cli")
    if package is None or not package.submodule_search_locations:
        raise ImportError("unsloth is not installed")
    path = f"{package.submodule_search_locations[0]}/config.py"
    spec = importlib.util.spec_from_file_location("unsloth_cli_config", path)
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Config


def _names(*types: Any) -> list[str]:
    return sorted({each.name for one in types for each in fields(one)})
