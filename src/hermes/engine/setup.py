"""From options to parts: device, dtype, base model, tokenizer, memory for keys and values.

What `auto` means was measured: with AMX or AVX-512 instructions for bf16 a CPU samples and trains two to
three times as fast in bf16 as in fp32; without any a product of 8 rows takes a hundred times as long.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from hermes.engine.attention.kv_cache import KvPool, cell_bytes, slot_size
from hermes.engine.info import EngineOptions
from hermes.engine.memory import free_bytes
from hermes.engine.model.backbone import Backbone
from hermes.engine.model.cpu_prepacked import has_bf16
from hermes.engine.model.load import load_backbone
from hermes.engine.sampling.request import SamplerLimits
from hermes.engine.sampling.runner import ModelRunner, TorchRunner
from hermes.engine.sampling.scheduler import SamplingScheduler
from hermes.engine.sampling.stops import StopBook
from hermes.engine.spec import ModelSpec
from hermes.engine.types import EngineCapacityError, EngineUserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_logger = logging.getLogger(__name__)
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

_MAX_BATCH = {"cpu": 64, "cuda": 1024}
_CPU_PREFILL_TOKENS = 512
_PREFILL_WORK = 16e12
"""Multiplications of one turn of prompts on a GPU, about 40 ms: small models take more tokens at once."""
_CPU_TRAIN_TOKENS = (256, 2048)
"""Fewest and most of a training micro-batch: more share a prompt and fill the cores, but want memory."""
_CUDA_ACTIVATION_SHARE = 0.6
"""Of what is free beside weights and cache, for the activations of one training micro-batch."""
_CUDA_KV_SHARE = 0.5
_CPU_MEMORY_BYTES = 4 << 30
"""A laptop with 8 GB has this to spare."""
_CPU_RUNTIME_BYTES = 700 << 20
"""Python, torch, and what the allocator cannot give back."""
_CPU_LEAST_ROOM_BYTES = 7 << 28
_CPU_WEIGHT_COPIES = 3
"""Plain ones to train with, in the processor's layout to sample with, and those with an adapter merged in."""
_CPU_KV_SHARE, _CPU_ACTIVATION_SHARE = 0.35, 0.55
"""Of the room beside weights and runtime. The rest is for adapters, optimizer states and policies."""


@dataclass(frozen=True, slots=True)
class Parts:
    backbone: Backbone
    sampler: SamplingScheduler
    stops: StopBook
    limits: SamplerLimits
    train_tokens: int
    """Computed tokens of one training micro-batch."""
    base_bytes: int


def build(options: EngineOptions) -> Parts:
    """EngineUserError: the model or an option is wrong. EngineCapacityError: too little memory."""
    device = _device(options.device)
    backbone = load_backbone(options.model, device, _dtype(options.dtype, device), options.kind)
    spec = backbone.spec
    max_length = options.max_length or spec.max_length
    max_batch = options.max_batch or _MAX_BATCH[device.type]
    if max_length < 1 or max_batch < 1:
        raise EngineUserError("max_length and max_batch must be 1 or more.")
    if max_length > spec.max_length:
        raise EngineUserError(
            f"A max_length of {max_length} is more than the {spec.max_length} tokens that {spec.name} knows.",
            f"Use --max-length {spec.max_length} or less.",
        )
    base_bytes = _parameters(spec) * backbone.dtype.itemsize
    room = _cpu_room(options, base_bytes) if device.type == "cpu" else None
    cells = _cells(options, backbone, max_batch * slot_size(max_length), room)
    if cells < max_length:
        _logger.warning(
            "the memory for keys and values holds %d tokens, so prompt and answer together are limited to "
            "that, not %d: --kv-gib gives more",
            cells,
            max_length,
        )
    runner = _runner(backbone, cells, max_batch)
    return Parts(
        backbone=backbone,
        sampler=SamplingScheduler(runner, cells, max_batch, _prefill_tokens(spec, device)),
        stops=StopBook(_tokenizer(options.model), spec.eos_ids, spec.vocab),
        limits=SamplerLimits(spec.vocab, max_length, cells),
        train_tokens=_train_tokens(backbone, room),
        base_bytes=base_bytes,
    )


def _cpu_room(options: EngineOptions, base_bytes: int) -> int:
    """Bytes beside weights and runtime, at most what is free. EngineCapacityError: the limit leaves none."""
    taken = _CPU_WEIGHT_COPIES * base_bytes + _CPU_RUNTIME_BYTES
    limit = options.memory_bytes or max(_CPU_MEMORY_BYTES, taken + _CPU_LEAST_ROOM_BYTES)
    room = min(limit - taken, free_bytes(torch.device("cpu")))
    if room <= 0:
        raise EngineCapacityError(
            f"{limit / 2**30:.2f} GiB do not hold this model: its weights and the libraries take "
            f"{taken / 2**30:.2f} GiB.",
            "Give the engine more memory (--memory-gib), or take a smaller model.",
        )
    return room


def _cells(options: EngineOptions, backbone: Backbone, most: int, room: int | None) -> int:
    """Tokens whose keys and values the engine keeps. EngineCapacityError: next to none, or no memory."""
    device, each = backbone.device, cell_bytes(backbone.spec, backbone.dtype)
    free = free_bytes(device)
    share = int(free * _CUDA_KV_SHARE) if room is None else int(room * _CPU_KV_SHARE)
    budget = options.kv_bytes or share
    cells = min(budget // each, most)
    if cells < slot_size(1):
        raise EngineCapacityError(
            f"{budget} bytes for keys and values hold {cells} tokens.",
            "Give the engine more memory for them (--kv-gib).",
        )
    if cells * each > free:
        raise EngineCapacityError(
            f"{cells * each} bytes for keys and values are more than the {free} that are free.",
            "Use less --kv-gib.",
        )
    return cells


def _runner(backbone: Backbone, cells: int, max_batch: int) -> ModelRunner:
    if backbone.device.type != "cuda":
        return TorchRunner(backbone, KvPool(backbone.spec, cells, backbone.device, backbone.dtype))
    from hermes.engine.sampling.cuda_runner import PADDING_CELLS, CudaRunner

    pool = KvPool(backbone.spec, cells + PADDING_CELLS, backbone.device, backbone.dtype)
    return CudaRunner(backbone, pool, max_batch)


def _prefill_tokens(spec: ModelSpec, device: torch.device) -> int:
    """Prompt tokens computed between two decode steps."""
    if device.type != "cuda":
        return _CPU_PREFILL_TOKENS
    return max(2048, min(65536, int(_PREFILL_WORK / _parameters(spec))))


def _train_tokens(backbone: Backbone, room: int | None) -> int:
    """Tokens of a training micro-batch: as many as their activations leave room for."""
    spec = backbone.spec
    each = spec.layers * (8 * spec.hidden + 4 * spec.intermediate) * backbone.dtype.itemsize
    if room is not None:
        fewest, most = _CPU_TRAIN_TOKENS
        return max(fewest, min(most, int(room * _CPU_ACTIVATION_SHARE / each)))
    free = free_bytes(backbone.device)
    return max(1024, min(65536, int(free * _CUDA_ACTIVATION_SHARE / each)))


def _parameters(spec: ModelSpec) -> int:
    """Embeddings and linear layers; norms do not count."""
    linears = sum(one.inputs * one.outputs for one in spec.linears.values())
    return linears if spec.tied else linears + spec.vocab * spec.hidden


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, number = name.partition(":")
    if kind == "cuda" and number.isdecimal() and int(number):
        raise EngineUserError(
            f"The engine runs on the first GPU it sees, not on '{name}'.",
            f"Show it that one only: CUDA_VISIBLE_DEVICES={number} and --device cuda.",
        )
    if name not in ("cpu", "cuda", "cuda:0"):
        raise EngineUserError(f"'{name}' is not a device of the engine.", "Use auto, cpu or cuda.")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise EngineUserError("There is no GPU here that torch can use.", "Use --device auto or cpu.")
    return device


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        fast = (
            device.type == "cuda"
            or torch.cpu._is_avx512_bf16_supported()
            or torch.cpu._is_amx_tile_supported()
        )
        return torch.bfloat16 if fast else torch.float32
    if name not in _DTYPES:
        raise EngineUserError(f"'{name}' is not a dtype of the engine.", f"Use auto or {', '.join(_DTYPES)}.")
    if name == "bfloat16" and device.type == "cpu" and not has_bf16():
        _logger.warning("this processor computes bfloat16 a hundred times as slowly as --dtype float32")
    return _DTYPES[name]


def _tokenizer(source: str) -> PreTrainedTokenizerBase | None:
    """None where the model comes without one: then stops are token ids only."""
    from transformers import AutoTokenizer

    try:
        found: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError, KeyError):
        return None
    return found
