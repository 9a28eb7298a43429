"""The tokenizer of a recorded call, if this machine has it. Nothing is downloaded.

Ids are decoded only with the tokenizer of the model that sampled them: the base model of the run, or the
bundled model by its name. For any other the ids themselves are shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from hermes.config.paths import models_dir
from hermes.core import Header
from hermes.errors import HermesError
from hermes.rl.run import RlRun
from hermes.web.render.tokens import Decode

_BUNDLED = "smollm2"


def find_decoder(home: Path, header: Header, model: str) -> Decode | None:
    """A path is taken only from the configuration of a run, never from a trajectory."""
    run_model = _run_model(home, header)
    folder = Path(run_model).expanduser()
    if run_model and (folder / "tokenizer.json").is_file():
        return _decoder(folder / "tokenizer.json")
    bundled = models_dir(home) / f"hermes--{_BUNDLED}" / "tokenizer.json"
    if any(_is_bundled(name) for name in (run_model, model, header.model)) and bundled.is_file():
        return _decoder(bundled)
    return None


def _run_model(home: Path, header: Header) -> str:
    """The base model of the run that the trajectory belongs to; empty if there is none."""
    if header.run_id is None:
        return ""
    run = RlRun(home, Path(header.run_id).name)
    try:
        return run.config().run.model if run.config_path.is_file() else ""
    except HermesError:
        return ""


def _is_bundled(model: str) -> bool:
    name = model.rpartition("/")[2].lower()
    return name in ("bundled", _BUNDLED) or name.startswith(f"{_BUNDLED}-135m")


@lru_cache(maxsize=4)
def _decoder(path: Path) -> Decode | None:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    tokenizer: Any = Tokenizer.from_file(str(path))

    def decode(ids: Sequence[int]) -> list[str]:
        return [_text(tokenizer, token) for token in ids]

    return decode


def _text(tokenizer: Any, token: int) -> str:
    text: str = tokenizer.decode([token], skip_special_tokens=False) if token >= 0 else ""
    return text or f"⟨{token}⟩"
