"""Whether the memory of this machine holds the engine replicas of a run, before any of them is started.

The smallest memory that a replica can have is compared with what is free, so that nothing is refused that
might fit; the engine's own check at its start is exact. Where the size of the model or the memory is not
known, nothing is refused.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hermes.core.memory import available_bytes
from hermes.engine.footprint import cpu_bytes_needed, gpu_bytes_needed
from hermes.rl.machine import MissingRequirement, has_gpu
from hermes.rl.service import service_of

if TYPE_CHECKING:
    from hermes.config.load import Config
    from hermes.rl.config.fields import TrainerFields

_BYTES = {"float32": 4.0, "bfloat16": 2.0}
_QUANTIZED_BYTES = {"nf4": 0.5625, "int8": 1.0}
"""The size of a weight in a quantised layer, with its scale."""
_GIB = float(2**30)
_QUERY_S = 30.0


def missing_memory(config: Config, model: str, fields: TrainerFields) -> MissingRequirement | None:
    """`fields`: the section `tinker` of the run's configuration. None: the replicas may fit."""
    from hermes.training.schedule import parameters_of

    settings, replicas = config.settings.rl, fields.engine_replicas
    parameters, ranks = parameters_of(model), fields.engine_tensor_parallel_size
    if replicas == 1 or parameters is None or service_of(settings, config.environ) is not None:
        return None
    quantized_bytes = _QUANTIZED_BYTES.get(fields.engine_quantize)
    base_bytes = int(parameters * (quantized_bytes or _BYTES.get(fields.engine_dtype, 2.0)))
    if settings.device != "cpu" and has_gpu():
        return missing_on_gpus(replicas, base_bytes, gpu_free_bytes(config.environ), ranks)
    memory_gib = fields.engine_memory_gib
    limit = None if memory_gib is None else int(memory_gib * _GIB)
    one_copy = quantized_bytes is not None or ranks > 1
    needed = ranks * cpu_bytes_needed(base_bytes // ranks, one_copy=one_copy)
    return missing_on_cpu(replicas, needed, limit, available_bytes() or None)


def missing_on_cpu(
    replicas: int, needed: int, limit: int | None, free: int | None
) -> MissingRequirement | None:
    """`needed`: bytes of one replica. `limit`: engine_memory_gib in bytes, which the replicas divide."""
    room = min((size for size in (limit, free) if size is not None), default=None)
    if room is None or replicas * needed <= room:
        return None
    source = "are free" if room != limit else "is engine_memory_gib"
    return MissingRequirement(
        f"{replicas} engine replicas do not fit: each needs {needed / _GIB:.1f} GiB, and {room / _GIB:.1f} "
        f"GiB {source}",
        f"set engine_replicas to {max(1, room // needed)} or less, or train a smaller model",
    )


def missing_on_gpus(
    replicas: int, base_bytes: int, free: Sequence[int], ranks: int = 1
) -> MissingRequirement | None:
    """`free`: of each visible GPU. Replicas, each of `ranks` processes, are placed on the GPUs in turn."""
    if not free:
        return None
    needed = gpu_bytes_needed(base_bytes // ranks)
    for number, room in enumerate(free):
        placed = len(range(number, replicas * ranks, len(free)))
        if placed * needed > room:
            fitting = sum(size // needed for size in free) // ranks
            gpus = f"{len(free)} GPU{'s' if len(free) > 1 else ''}"
            processes = f" of {ranks} processes" if ranks > 1 else ""
            holder = "each process" if ranks > 1 else "each"
            return MissingRequirement(
                f"{replicas} engine replicas{processes} do not fit on {gpus}: {holder} needs "
                f"{needed / _GIB:.1f} GiB at least, and GPU {number} has {room / _GIB:.1f} GiB free for "
                f"{placed}",
                f"set engine_replicas to {max(1, fitting)} or less, or train a smaller model",
            )
    return None


def gpu_free_bytes(environ: Mapping[str, str]) -> list[int]:
    """The free memory of each GPU that CUDA_VISIBLE_DEVICES shows; empty if the driver does not answer."""
    command = ("nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits")
    try:
        reply = subprocess.run(command, capture_output=True, text=True, timeout=_QUERY_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    sizes = [int(line) << 20 for line in reply.stdout.split() if line.isdecimal()]
    visible = environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if not all(name.isdecimal() and int(name) < len(sizes) for name in visible):
        return sizes if visible == [""] else []
    return [sizes[int(name)] for name in visible]
