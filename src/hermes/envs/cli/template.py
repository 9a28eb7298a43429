"""`hermes env new`: a file from `environment.py.template`, which passes `hermes env check` as it is."""

from __future__ import annotations

import keyword
import re
from importlib import resources
from pathlib import Path
from string import Template

from hermes.errors import UsageError


def write_template(name: str, folder: Path) -> Path:
    """Writes NAME.py into the folder; an existing file is not overwritten."""
    stem = name.strip().replace("-", "_").replace(" ", "_")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", stem) or keyword.iskeyword(stem):
        raise UsageError(
            f"'{name}' is not a valid name for an environment.",
            "Use letters, digits and underscores, a letter first.",
        )
    path = folder / f"{stem.lower()}.py"
    parts = [part[:1].upper() + part[1:] for part in stem.split("_")]
    class_name = "".join(parts).removesuffix("Env") + "Env"
    template = resources.files("hermes.envs.cli").joinpath("environment.py.template").read_text("utf-8")
    text = Template(template).substitute(name=stem.lower(), class_name=class_name, file=path.name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{path} already exists.", "Choose another name, or remove it.") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.", "Choose another --dir.") from error
    return path
