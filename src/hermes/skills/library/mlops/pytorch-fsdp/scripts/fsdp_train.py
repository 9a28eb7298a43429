"""Train a transformers model with FSDP2, save a sharded checkpoint, resume it, and write one complete model.

Start it with torchrun, on GPUs or (for a trial, with a random model) on a CPU:
    torchrun --nproc-per-node 2 fsdp_train.py --trial --steps 3 --output out
Data are random tokens: replace `batches` by a real loader.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def build_model(options: argparse.Namespace) -> Any:
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    if not options.trial:
        return AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=128,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
    )


def shard(model: Any, options: argparse.Namespace, device: str) -> Any:
    """Every layer is one unit, the rest is the last one. Weights stay float32; a GPU computes in bf16."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

    mesh = init_device_mesh(device, (int(os.environ["WORLD_SIZE"]),))
    policy = MixedPrecisionPolicy()
    if device == "cuda":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    offload = CPUOffloadPolicy() if options.offload else OffloadPolicy()
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy, offload_policy=offload)
    return fully_shard(model, mesh=mesh, mp_policy=policy, offload_policy=offload)


def batches(vocabulary: int, rank: int, device: str) -> Iterator[Any]:
    import torch

    generator = torch.Generator().manual_seed(rank)
    while True:
        yield torch.randint(vocabulary, (2, 32), generator=generator).to(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="Qwen/Qwen3-4B")
    parser.add_argument("--trial", action="store_true", help="A random model of two layers")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--offload", action="store_true", help="Keep shards and optimizer in host memory")
    parser.add_argument("--output", type=Path, default=Path("out"))
    options = parser.parse_args()
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_model_state_dict,
        get_state_dict,
        set_state_dict,
    )

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    rank = dist.get_rank()
    model = shard(build_model(options), options, device)
    # After the sharding: the optimizer must hold the sharded parameters.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    checkpoint = options.output / "sharded"
    if checkpoint.exists():
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments}
        dcp.load(state, checkpoint_id=checkpoint)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    for step, ids in zip(range(options.steps), batches(model.config.vocab_size, rank, device), strict=False):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            norm_value = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
            print(f"step {step} loss {loss.item():.4f} gradient norm {norm_value.item():.4f}")
        elif hasattr(norm, "full_tensor"):
            norm.full_tensor()  # a collective operation: every rank must take part
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=checkpoint)
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        model.save_pretrained(options.output / "model", state_dict=whole)
        print(f"{options.output / 'model'} holds the complete model.")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
