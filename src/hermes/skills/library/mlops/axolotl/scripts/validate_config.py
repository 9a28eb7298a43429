"""Validate an Axolotl YAML file against the schema of the Axolotl that is installed.

No GPU, no model and no data are needed. Unknown keys are reported, because Axolotl itself ignores them: a
misspelled key would otherwise leave its default in place without a word. Keys that plugins add are known only
when `--plugin-keys` names them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def unknown_keys(document: dict[str, object], extra: set[str]) -> list[str]:
    from axolotl.utils.schemas import config, datasets

    field_names = set(config.AxolotlInputConfig.model_fields) | extra
    problems = [f"{key}: no such key" for key in document if key not in field_names]
    row_classes = [
        datasets.SFTDataset,
        datasets.DPODataset,
        datasets.KTODataset,
        datasets.StepwiseSupervisedDataset,
    ]
    row_keys = {name for row_class in row_classes for name in row_class.model_fields}
    for field in ("datasets", "test_datasets"):
        for index, entry in enumerate(document.get(field) or []):
            problems += [f"{field}[{index}].{key}: no such key" for key in entry if key not in row_keys]
    return problems


def schema_problems(document: dict[str, object]) -> list[str]:
    from axolotl.utils.schemas.config import AxolotlInputConfig
    from pydantic import ValidationError

    try:
        AxolotlInputConfig(**document)
    except ValidationError as error:
        return [f"{'.'.join(str(part) for part in row['loc'])}: {row['msg']}" for row in error.errors()]
    except DeprecationWarning as warning:
        # Axolotl raises this class for keys that were removed.
        return [str(warning)]
    return []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path, nargs="+", help="Axolotl YAML files")
    parser.add_argument("--plugin-keys", default="", help="Keys that a plugin adds, separated by commas")
    options = parser.parse_args()
    extra = {key for key in options.plugin_keys.split(",") if key}

    import yaml

    failures = 0
    for path in options.config:
        document = yaml.safe_load(path.read_text())
        if not isinstance(document, dict):
            problems = ["is not a mapping of keys"]
        else:
            problems = unknown_keys(document, extra) + schema_problems(document)
        failures += bool(problems)
        for problem in problems:
            print(f"{path}: {problem}")
        if not problems:
            print(f"{path}: ok")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
