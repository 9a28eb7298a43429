"""The memory that an engine needs of a machine before it has a cache or trains: arithmetic without torch.

The engine plans with it when it loads a model, and a run is checked with it before anything is started.
"""

from __future__ import annotations

CPU_RUNTIME_BYTES = 700 << 20
"""Python, torch, and memory that the allocator cannot return."""
GPU_RUNTIME_BYTES = 1 << 30
"""The CUDA context and the libraries' workspaces of one process."""
_CPU_WEIGHT_COPIES = 2
"""Plain weights for training, and prepacked ones for sampling, with an adapter merged in or without."""


def cpu_bytes_needed(base_bytes: int, *, one_copy: bool = False) -> int:
    """The memory that an engine on a CPU needs beside cache and activations.

    `one_copy`: of quantised weights, and of those that several processes have together, there is no other.
    """
    return (1 if one_copy else _CPU_WEIGHT_COPIES) * base_bytes + CPU_RUNTIME_BYTES


def gpu_bytes_needed(base_bytes: int) -> int:
    """The memory that an engine on a GPU needs at least: copies of the weights are made if there is room."""
    return base_bytes + GPU_RUNTIME_BYTES
