"""Records which fields each trainer's configuration knows, from the installed packages themselves.

    python scripts/recipe_keys.py tests/data/recipes/keys

Install what is to be recorded first, `--no-deps` where the schema alone is wanted. A package that is not
there is passed over; its recorded file stays.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.data.recipes import real

READERS: dict[str, Callable[[], dict[str, list[str]]]] = {
    "axolotl": real.axolotl_keys,
    "llamafactory": real.llamafactory_keys,
    "trl": real.trl_keys,
    "unsloth": real.unsloth_keys,
}


def main() -> None:
    folder = Path(sys.argv[1])
    os.environ.setdefault("DISABLE_VERSION_CHECK", "1")
    for package, read in READERS.items():
        try:
            version = importlib.metadata.version(package)
            keys = read()
        except (ImportError, importlib.metadata.PackageNotFoundError) as error:
            sys.stderr.write(f"{package}: passed over ({error})\n")
            continue
        beneath = {"transformers": importlib.metadata.version("transformers")}
        recorded = {"package": package, "version": version, "read_with": beneath, "keys": keys}
        (folder / f"{package}.json").write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
