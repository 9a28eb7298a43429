"""The options of `hermes engine serve`, declared once (`config/option.py`), and its command line."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from hermes.config.option import Options, command_words, option


class ModelOptions(Options):
    """The base model and its device."""

    model: str = option("hermes/smollm2", "Bundled, hub name or folder.")
    device: str = option(
        "auto",
        "cuda is the first GPU that CUDA_VISIBLE_DEVICES shows; auto uses it if there is one.",
        metavar="[auto|cpu|cuda]",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = option(
        "auto", "Number format of the base model; adapters and optimizer are float32."
    )
    quantize: Literal["nf4", "int8"] | None = option(
        None, "Store the base model's layers in 4 bits (QLoRA's NF4) or 8: less memory, slower."
    )


class EngineServeOptions(ModelOptions):
    host: str = option("127.0.0.1", "Address to listen on.")
    port: int = option(8001, "0: any free port.", ge=0, le=65535)
    max_adapters: int = option(32, "Adapters in training at once; with --replicas, in each worker.", ge=1)
    replicas: str = option(
        "1",
        "Worker processes, each with a copy of the model; auto: one a GPU, or one for eight CPU cores.",
        metavar="N|auto",
    )
    tensor_parallel_size: int = option(
        1,
        "Processes, on a GPU each if there are as many, that divide the layers of one copy of the model.",
        ge=1,
        le=64,
    )
    ray_address: str | None = option(
        None,
        "Run the workers on the nodes of this Ray cluster; --replicas auto: one a GPU, or one a node.",
        "--ray",
        metavar="HOST:PORT",
    )
    ray_insecure: bool = option(False, "Use a Ray cluster that requires no token.")
    exact: bool = option(
        False,
        "Sampler and trainer give the same logprobs bit for bit: slower, and only on a GPU in bfloat16.",
    )
    max_length: int | None = option(
        None,
        "Longest sequence; default: the model's own.",
        "--max-tokens",
        former=("--max-length",),
        ge=2,
    )
    kv_gib: float | None = option(
        None,
        "Memory for the KV cache, in GiB; it also bounds the length of prompt and completion. "
        "Default: a share of --memory-gib on a CPU, half of what is free on a GPU.",
        gt=0,
    )
    memory_gib: float | None = option(
        None,
        "Total memory of the engine on a CPU, in GiB. "
        "Default: 4, or three copies of the weights and 2.4 GiB where that is more.",
        gt=0,
    )
    state_dir: Path | None = option(
        None, "Where checkpoints are kept; default: engine/ in the Hermes home.", path="folder"
    )
    client_timeout: float = option(
        300.0,
        "Seconds without a request after which a client's adapters are freed.",
        "--timeout",
        former=("--client-timeout",),
        ge=1,
    )
    tool_parser: str = option(
        "hermes",
        "Tool-call format of the model in chat; hermes renders the tools as text.",
        "--parser",
        former=("--tool-parser",),
    )
    policies: tuple[str, ...] = option(
        (),
        "Serve the adapter in FOLDER as the model NAME, and the base model to nobody; repeatable. Without "
        "--state-dir checkpoints are then temporary.",
        "--policy",
        metavar="NAME=FOLDER",
    )
    no_token: bool = option(
        False,
        "On loopback without HERMES_ENGINE_TOKEN: answer every user of this machine, not only you.",
    )

    def arguments(self) -> tuple[str, ...]:
        """`engine serve …`, with what is not a default."""
        values = self.model_dump(exclude_defaults=True)
        return ("engine", "serve", *command_words(type(self), values))
