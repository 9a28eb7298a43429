"""Builds the engine's parts from its options: device, dtype, base model, tokenizer, memory.

The defaults behind `auto` were measured: with AMX or AVX-512 instructions for bf16 a CPU samples and trains
two to three times as fast in bf16 as in fp32; without them a matrix product of 8 rows takes a hundred times
as long.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from hermes.engine.attention.kv_cache import kv_bytes_per_token, slot_size
from hermes.engine.footprint import cpu_bytes_needed
from hermes.engine.info import EngineOptions
from hermes.engine.memory import free_bytes
from hermes.engine.model.backbone import Backbone
from hermes.engine.model.cpu_prepacked import has_bf16
from hermes.engine.model.llama import LlamaBackbone
from hermes.engine.model.load import load_backbone
from hermes.engine.model.quantized import QuantizedLayers
from hermes.engine.sampling.open_runner import open_runner
from hermes.engine.sampling.prefill import PrefillLimits
from hermes.engine.sampling.request import SamplerLimits
from hermes.engine.sampling.runner import ModelRunner
from hermes.engine.sampling.scheduler import SamplingScheduler
from hermes.engine.sampling.stops import StopParser
from hermes.engine.spec import QUANTIZATIONS, ModelSpec, Quantization
from hermes.engine.training.passes import RunPass, run_pass
from hermes.engine.types import EngineCapacityError, EngineUserError
from hermes.models.tokens.tokenizer import open_tokenizer_if_any

if TYPE_CHECKING:
    from hermes.engine.tensor_parallel.leader import Followers

_logger = logging.getLogger(__name__)
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

_MAX_BATCH = {"cpu": 64, "cuda": 1024}
_CPU_PREFILL_TOKENS = 512
_CPU_PREFILL_S = 1.0
"""The time of one prefill step: a request that comes meanwhile waits for it."""
_PREFILL_MULTIPLICATIONS = 16e12
"""The work of one prefill step on a GPU, about 40 ms: small models compute more tokens at once."""
_CPU_TRAIN_TOKENS = (256, 2048)
"""Minimum and maximum of a training micro-batch: more tokens share prompts and fill the cores, but need
memory."""
_CUDA_ACTIVATION_SHARE = 0.6
"""Share of the memory beside weights and cache for the activations of one training micro-batch."""
_CUDA_KV_SHARE = 0.5
_CPU_MEMORY_BYTES = 4 << 30
"""The memory that a laptop with 8 GB can spare."""
_CPU_MIN_ROOM_BYTES = 7 << 28
_CPU_KV_SHARE, _CPU_ACTIVATION_SHARE = 0.35, 0.55
"""Shares of the memory beside weights and runtime. The rest is for adapters, optimizer states and
policies."""


@dataclass(frozen=True, slots=True)
class EngineParts:
    backbone: Backbone
    sampler: SamplingScheduler
    stops: StopParser
    limits: SamplerLimits
    train_tokens: int
    """Tokens computed in one training micro-batch."""
    base_bytes: int
    run_pass: RunPass = run_pass
    followers: Followers | None = None
    """The other ranks of the model, where it has any."""


def build(options: EngineOptions) -> EngineParts:
    """EngineUserError: the model or an option is invalid. EngineCapacityError: there is too little memory."""
    device = _device(options.device)
    quantization = _quantization(options)
    dtype = _dtype(options.dtype, device)
    if options.tensor_parallel_size > 1:
        return _build_ranks(options, device, dtype)
    backbone = load_backbone(options.model, device, dtype, options.kind, quantization)
    if options.exact:
        backbone = _batch_invariant(backbone)
    return _build_parts(options, backbone, _base_bytes(backbone))


def _build_ranks(options: EngineOptions, device: torch.device, dtype: torch.dtype) -> EngineParts:
    """The leader's parts, of a model that several processes have together; they divide the memory limit."""
    from hermes.engine.tensor_parallel.leader import start_ranks

    memory_bytes = options.memory_bytes and options.memory_bytes // options.tensor_parallel_size
    backbone, followers = start_ranks(options, device, dtype)
    try:
        options = replace(options, memory_bytes=memory_bytes)
        return _build_parts(options, backbone, backbone.nbytes, followers)
    except BaseException:
        followers.close()
        raise


def _build_parts(
    options: EngineOptions, backbone: Backbone, base_bytes: int, followers: Followers | None = None
) -> EngineParts:
    spec, device = backbone.spec, backbone.device
    max_length = options.max_length or spec.max_length
    max_batch = options.max_batch or _MAX_BATCH[device.type]
    if max_length < 1 or max_batch < 1:
        raise EngineUserError("max_length and max_batch must be 1 or more.")
    if max_length > spec.max_length:
        raise EngineUserError(
            f"A max_length of {max_length} is more than the {spec.max_length} tokens of {spec.name}.",
            f"Use --max-length {spec.max_length} or less.",
        )
    room = _cpu_room(options, base_bytes) if device.type == "cpu" else None
    kv_tokens = _kv_tokens(options, backbone, max_batch * slot_size(max_length), room)
    if kv_tokens < max_length:
        _logger.warning(
            "the memory for keys and values holds %d tokens, which limits prompt and answer together; "
            "the limit would be %d with more --kv-gib",
            kv_tokens,
            max_length,
        )
    runner = _runner(backbone, kv_tokens, max_batch, followers)
    return EngineParts(
        backbone=backbone,
        sampler=SamplingScheduler(runner, kv_tokens, max_batch, _prefill_limits(spec, device)),
        stops=StopParser(partial(open_tokenizer_if_any, options.model), spec.eos_ids, spec.vocab),
        limits=SamplerLimits(spec.vocab, max_length, kv_tokens),
        train_tokens=_train_tokens(backbone, room, options.device_share),
        base_bytes=base_bytes,
        run_pass=_run_pass(followers),
        followers=followers,
    )


def _quantization(options: EngineOptions) -> Quantization | None:
    if options.quantize is None:
        return None
    quantization = next((kind for kind in QUANTIZATIONS if kind == options.quantize), None)
    if quantization is None:
        raise EngineUserError(
            f"'{options.quantize}' is not a quantization of the engine.", f"Use {' or '.join(QUANTIZATIONS)}."
        )
    return quantization


def _base_bytes(backbone: Backbone) -> int:
    """Memory of the base model's weights."""
    spec = backbone.spec
    if not isinstance(backbone, LlamaBackbone) or not isinstance(backbone.layers, QuantizedLayers):
        return _parameter_count(spec) * backbone.dtype.itemsize
    head = 0 if spec.tied else backbone.head_weight.nbytes
    return backbone.layers.nbytes + backbone.embed.nbytes + head


def _batch_invariant(backbone: Backbone) -> Backbone:
    """The backbone with batch-invariant kernels. EngineUserError: there are none for it."""
    if backbone.device.type != "cuda" or backbone.dtype != torch.bfloat16:
        name = str(backbone.dtype).removeprefix("torch.")
        raise EngineUserError(
            f"--exact needs a GPU and bfloat16; this engine computes {name} on {backbone.device.type}.",
            "Start it without --exact: in float32 the logprobs of sampler and trainer differ by about 1e-5.",
        )
    if not isinstance(backbone, LlamaBackbone):
        raise EngineUserError(
            f"--exact does not support '{backbone.spec.name}': its family runs through transformers.",
            "Start the engine without --exact.",
        )
    return replace(backbone, batch_invariant=True)


def _cpu_room(options: EngineOptions, base_bytes: int) -> int:
    """Memory beside weights and runtime, at most what is free. EngineCapacityError: the limit leaves none."""
    ranks = options.tensor_parallel_size
    needed = cpu_bytes_needed(base_bytes, one_copy=options.quantize is not None or ranks > 1)
    limit = options.memory_bytes or max(_CPU_MEMORY_BYTES, needed + _CPU_MIN_ROOM_BYTES)
    room = min(limit - needed, free_bytes(torch.device("cpu")) // ranks)
    if room <= 0:
        raise EngineCapacityError(
            f"{limit / 2**30:.2f} GiB are not enough for this model: its weights and the libraries need "
            f"{needed / 2**30:.2f} GiB{' in each of the processes' if ranks > 1 else ''}.",
            "Give the engine more memory (--memory-gib), or use a smaller model.",
        )
    return room


def _kv_tokens(options: EngineOptions, backbone: Backbone, most: int, room: int | None) -> int:
    """Size of the pool of keys and values. EngineCapacityError: too small to use, or more than is free."""
    token_bytes = kv_bytes_per_token(_attention_spec(options, backbone), backbone.dtype)
    free = free_bytes(backbone.device)
    share = int(free * _CUDA_KV_SHARE * options.device_share) if room is None else int(room * _CPU_KV_SHARE)
    budget = options.kv_bytes or share
    kv_tokens = min(budget // token_bytes, most)
    if kv_tokens < slot_size(1):
        raise EngineCapacityError(
            f"{budget} bytes for keys and values hold {kv_tokens} tokens.",
            "Give the engine more memory for them (--kv-gib).",
        )
    if kv_tokens * token_bytes > free:
        raise EngineCapacityError(
            f"{kv_tokens * token_bytes} bytes for keys and values are more than the {free} that are free.",
            "Use less --kv-gib.",
        )
    return kv_tokens


def _attention_spec(options: EngineOptions, backbone: Backbone) -> ModelSpec:
    """The shape of the attention that one process computes."""
    if options.tensor_parallel_size == 1:
        return backbone.spec
    from hermes.engine.tensor_parallel.plan import largest_local_spec

    return largest_local_spec(backbone.spec, options.tensor_parallel_size)


def _run_pass(followers: Followers | None) -> RunPass:
    if followers is None:
        return run_pass
    from hermes.engine.tensor_parallel.leader import LeaderPasses

    return LeaderPasses(followers).run_pass


def _runner(backbone: Backbone, kv_tokens: int, max_batch: int, followers: Followers | None) -> ModelRunner:
    if followers is None:
        return open_runner(backbone, kv_tokens, max_batch)
    from hermes.engine.tensor_parallel.backbone import ShardedLlama
    from hermes.engine.tensor_parallel.leader import LeaderRunner

    assert isinstance(backbone, ShardedLlama)
    return LeaderRunner(backbone, kv_tokens, max_batch, followers)


def _prefill_limits(spec: ModelSpec, device: torch.device) -> PrefillLimits:
    """The tokens of prompts that are computed between two decode steps."""
    parameters = _parameter_count(spec)
    if device.type == "cuda":
        return PrefillLimits(max(2048, min(65536, int(_PREFILL_MULTIPLICATIONS / parameters))), gather=True)
    attention = 2 * spec.layers * spec.heads * spec.head_dim
    return PrefillLimits(_CPU_PREFILL_TOKENS, attention / parameters, _CPU_PREFILL_S)


def _train_tokens(backbone: Backbone, room: int | None, device_share: float) -> int:
    """Tokens of a training micro-batch: as many as fit with their activations."""
    spec = backbone.spec
    token_bytes = spec.layers * (8 * spec.hidden + 4 * spec.intermediate) * backbone.dtype.itemsize
    if room is not None:
        fewest, most = _CPU_TRAIN_TOKENS
        return max(fewest, min(most, int(room * _CPU_ACTIVATION_SHARE / token_bytes)))
    free = free_bytes(backbone.device)
    return max(1024, min(65536, int(free * device_share * _CUDA_ACTIVATION_SHARE / token_bytes)))


def _parameter_count(spec: ModelSpec) -> int:
    """Number of parameters in embeddings and linear layers; norms are not counted."""
    linears = sum(linear.inputs * linear.outputs for linear in spec.linears.values())
    return linears if spec.tied else linears + spec.vocab * spec.hidden


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, number = name.partition(":")
    if kind == "cuda" and number.isdecimal() and int(number):
        raise EngineUserError(
            f"The engine runs on the first visible GPU, not on '{name}'.",
            f"Make that one the only visible GPU: CUDA_VISIBLE_DEVICES={number} and --device cuda.",
        )
    if name not in ("cpu", "cuda", "cuda:0"):
        raise EngineUserError(f"'{name}' is not a device of the engine.", "Use auto, cpu or cuda.")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise EngineUserError("torch finds no usable GPU.", "Use --device auto or cpu.")
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
