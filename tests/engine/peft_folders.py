"""Adapters as PEFT writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.engine.tiny import tiny_model


def foreign(family: str, folder: Path, **config: Any) -> Any:
    """A model under PEFT with a random adapter, saved by PEFT."""
    import peft

    torch.manual_seed(5)
    twin = peft.get_peft_model(tiny_model(family), peft.LoraConfig(init_lora_weights=False, **config))
    twin.save_pretrained(folder)
    return twin.eval()
