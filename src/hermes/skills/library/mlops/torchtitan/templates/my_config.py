"""A torchtitan configuration: SFT of Qwen3-8B on single question and answer pairs from a JSONL file.

Start: torchrun --nproc-per-node 8 -m torchtitan.train --module my_config --config sft_pairs
The module must be importable (put its folder on PYTHONPATH). Each row has the keys `question` and `answer`.
"""

from __future__ import annotations

from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import SelectiveAC
from torchtitan.hf_datasets.text_datasets import ChatDataLoader
from torchtitan.models.common.config_utils import decoder_vocab_size
from torchtitan.models.qwen3 import model_registry
from torchtitan.trainer import Trainer


def messages(sample: dict[str, str]) -> list[dict[str, str]]:
    """Exactly one user and one assistant message: the loader of version 0.3.0 accepts nothing else."""
    return [
        {"role": "user", "content": sample["question"]},
        {"role": "assistant", "content": sample["answer"]},
    ]


def sft_pairs() -> Trainer.Config:
    spec = model_registry("8B", attn_backend="varlen")
    return Trainer.Config(
        model_spec=spec,
        hf_assets_path="./assets/hf/Qwen3-8B",
        loss=ChunkedLossWrapper.Config(
            loss_fn=CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(spec)),
        ),
        optimizer=default_adamw(lr=2e-5),
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=20, decay_ratio=0.9, decay_type="cosine"),
        training=TrainingConfig(local_batch_size=1, global_batch_size=64, seq_len=4096, steps=500),
        parallelism=ParallelismConfig(data_parallel_shard_degree=-1, tensor_parallel_degree=1),
        dataloader=ChatDataLoader.Config(
            dataset_path="json",
            load_dataset_kwargs={"data_files": "data/pairs.jsonl", "split": "train"},
            sample_processor=messages,
        ),
        metrics=MetricsProcessor.Config(log_freq=1, enable_tensorboard=True),
        checkpoint=CheckpointManager.Config(
            enable=True,
            interval=100,
            initial_load_in_hf=True,
            last_save_in_hf=True,
            export_dtype="bfloat16",
        ),
        activation_checkpoint=SelectiveAC.Config(),
    )
