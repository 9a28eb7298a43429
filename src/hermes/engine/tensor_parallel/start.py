"""Loads a model that several ranks have together: checks it, starts the followers, and joins them."""

from __future__ import annotations

import torch

from hermes.engine.info import EngineOptions
from hermes.engine.tensor_parallel.backbone import ShardedLlama, load_shard
from hermes.engine.tensor_parallel.followers import Followers
from hermes.engine.tensor_parallel.plan import check_shardable
from hermes.engine.types import EngineUserError


def start_ranks(
    options: EngineOptions, device: torch.device, dtype: torch.dtype
) -> tuple[ShardedLlama, Followers]:
    """The leader's part of the model, and the other ranks.

    EngineUserError: the model cannot be divided, or an option does not go with it. HostError: a rank died.
    """
    from transformers import AutoConfig

    size = options.tensor_parallel_size
    _check_options(options)
    try:
        config = AutoConfig.from_pretrained(options.model)
    except (OSError, ValueError) as error:
        raise EngineUserError(
            f"The base model '{options.model}' could not be loaded: {str(error).splitlines()[0]}",
            "Use a folder with config.json and safetensors, or a hub name that can be reached.",
        ) from error
    check_shardable(config, options.model, size)
    followers = Followers(options.model, size, device, dtype)
    try:
        backbone = load_shard(options.model, config, 0, size, device, dtype)
        followers.join()
    except BaseException:
        followers.close()
        raise
    return backbone, followers


def _check_options(options: EngineOptions) -> None:
    excluded = {
        "--quantize": options.quantize is not None,
        "--exact": options.exact,
        "kind='transformers'": options.kind == "transformers",
    }
    for name, is_set in excluded.items():
        if is_set:
            raise EngineUserError(
                f"{name} and --tensor-parallel-size cannot be combined.", "Leave one of them out."
            )
