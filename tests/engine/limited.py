"""Trains and samples a model in processes whose memory is limited, as that of a device is.

    python -m tests.engine.limited FOLDER SIZE LIMIT_BYTES

Prints the losses and the sampled tokens as JSON, or the reason why the model does not fit. The limit counts
everything that a process writes to: weights, activations, libraries.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    folder, size, limit_bytes = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))  # inherited by every rank
    print(json.dumps(run(folder, size)))


def run(folder: Path, size: int) -> dict[str, Any]:
    from hermes.engine.info import EngineOptions
    from hermes.engine.replicas.front import EngineFront
    from hermes.engine.types import AdamParams, EngineCapacityError
    from tests.engine.replica_parts import IMPORTANCE, LORA, grpo_data, request, texts

    options = EngineOptions(
        str(folder),
        device="cpu",
        dtype="float32",
        kv_bytes=1 << 26,
        max_length=128,
        tensor_parallel_size=size,
    )
    try:
        front = EngineFront(options, 1)
    except EngineCapacityError as error:
        return {"error": error.message}
    try:
        adapter = front.create_adapter(LORA).result()
        losses = []
        for step in range(3):
            output = front.forward_backward(adapter, grpo_data(step), IMPORTANCE).result()
            losses.append(output.metrics["loss:sum"])
            front.optim_step(adapter, AdamParams(learning_rate=1e-3)).result()
        policy = front.snapshot(adapter).result()
        return {"losses": losses, "tokens": texts(front.sample(policy, request(1)).result())}
    finally:
        front.close()


if __name__ == "__main__":
    main()
