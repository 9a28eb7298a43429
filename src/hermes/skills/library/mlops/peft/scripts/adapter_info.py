"""Print what a PEFT LoRA folder contains: rank, targets, parameters, and whether it was trained at all.

Reads `adapter_config.json` and the bytes of `adapter_model.safetensors`; needs neither torch nor peft.
Exit code 1: the folder is no LoRA adapter, or every B matrix is zero (a no-op adapter).
"""

from __future__ import annotations

import argparse
import json
import math
import struct
import sys
from pathlib import Path

MAX_HEADER_BYTES = 100_000_000


def read_header(path: Path) -> tuple[dict[str, dict[str, object]], int]:
    """The tensors by name, and the offset of the first data byte."""
    with path.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        if length > MAX_HEADER_BYTES:
            raise ValueError(f"the header would have {length} bytes")
        header = json.loads(stream.read(length))
    header.pop("__metadata__", None)
    return header, 8 + length


def is_zero(path: Path, start: int, stop: int) -> bool:
    with path.open("rb") as stream:
        stream.seek(start)
        remaining = stop - start
        while remaining:
            chunk = stream.read(min(remaining, 1 << 20))
            if chunk.strip(b"\0"):
                return False
            remaining -= len(chunk)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    weights = folder / "adapter_model.safetensors"
    try:
        settings = json.loads((folder / "adapter_config.json").read_text())
        tensors, data_start = read_header(weights)
    except (OSError, ValueError, struct.error) as error:
        print(f"{folder} is not a PEFT adapter that can be read: {error}")
        return 1
    if settings.get("peft_type") != "LORA":
        print(f"{folder} holds {settings.get('peft_type')}, not LORA.")
        return 1
    print(f"base model: {settings.get('base_model_name_or_path')}")
    print(
        f"rank {settings.get('r')}, alpha {settings.get('lora_alpha')}, rslora {settings.get('use_rslora')}"
    )
    print(f"targets: {settings.get('target_modules')}")
    for name in ("use_dora", "modules_to_save", "bias", "rank_pattern", "alpha_pattern"):
        if settings.get(name) not in (None, False, [], {}, "none"):
            print(f"{name}: {settings[name]}")
    count = sum(math.prod(entry["shape"]) for entry in tensors.values())
    print(f"{len(tensors)} tensors, {count:,} numbers, {weights.stat().st_size / 1e6:.1f} MB")
    second = {name: entry["data_offsets"] for name, entry in tensors.items() if "lora_B" in name}
    zero = [name for name, (a, b) in second.items() if is_zero(weights, data_start + a, data_start + b)]
    print(f"B matrices that are zero: {len(zero)} of {len(second)}")
    return 1 if second and len(zero) == len(second) else 0


if __name__ == "__main__":
    sys.exit(main())
