"""Where memory runs out, and what that costs: never more than the request it was for."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from hermes.engine.memory import is_out_of_memory
from hermes.engine.sampling.runner import TorchRunner
from hermes.engine.types import EngineCapacityError
from tests.engine.sampling_parts import Bench, prompt
from tests.engine.tiny import tiny_model

WIDE = 400_000
"""Tokens of a vocabulary whose projection, 100 MB in fp32, does not fit beside what there is."""


PIECE = 4 << 20


@contextmanager
def no_large_pieces_of_memory() -> Iterator[None]:
    """No more from the system, and what the process has free already is taken up piece by piece."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 4 * PIECE, before[1]))
    taken = []
    try:
        with pytest.raises(RuntimeError, match=r"not enough memory|allocate memory"):
            while True:
                taken.append(torch.empty(PIECE, dtype=torch.uint8))
        del taken[-2:]  # small things still have room
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


class ShortRunner(TorchRunner):
    """Has no memory for the tables of more than two rows: it asks for more than there can be."""

    def load(self, batch: Any) -> None:
        if len(batch.tokens) > 2:
            torch.empty(1 << 60)
        super().load(batch)


def test_a_batch_that_cannot_be_set_up_loses_its_youngest_alone() -> None:
    bench = Bench(runner=ShortRunner)
    jobs = [bench.ask(prompt(20, n), seed=n) for n in range(4)]
    bench.run()
    failed = [isinstance(job.future.exception(timeout=0), EngineCapacityError) for job in jobs]
    assert failed == [False, False, True, True]
    alone = Bench().sample(prompt(20, 1), seed=1).sequences[0]
    assert jobs[1].future.result().sequences[0].tokens.tolist() == alone.tokens.tolist()


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel errors might be …"),
        RuntimeError("CUDA driver error: out of memory"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("std::bad_alloc"),
        MemoryError(),
    ],
    ids=lambda error: str(error)[:30],
)
def test_every_part_that_can_run_out_of_memory_is_understood(error: BaseException) -> None:
    assert is_out_of_memory(error)


def test_the_cpu_allocators_own_words_are_understood_and_other_errors_are_not() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60)
    assert is_out_of_memory(caught.value)
    with pytest.raises(RuntimeError) as other:
        torch.ones(2) @ torch.ones(3)
    assert not is_out_of_memory(other.value)
    illegal = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    assert not is_out_of_memory(illegal)
    assert not is_out_of_memory(ValueError("out of memory"))


SHORT_OF_MEMORY = """
import resource, sys
import numpy as np, torch
torch.set_num_threads(1)
from hermes.engine.engine import Engine
from hermes.engine.info import EngineOptions
from hermes.engine.types import *
CROSS_ENTROPY = Loss("cross_entropy")
engine = Engine(EngineOptions(sys.argv[1], device="cpu", dtype="float32", kv_bytes=8 << 20))
engine.start()
adapter = engine.create_adapter(LoraConfig(rank=2, seed=1)).result()
tokens = np.arange(400)
small = SampleRequest(tokens[:40], SamplingParams(max_tokens=4, seed=1))
large = SampleRequest(tokens, SamplingParams(max_tokens=1), prompt_logprobs=True)
def train(targets):
    width = targets if targets > 1 else None
    one = np.tile(tokens[:, None], width) if width else tokens
    data = [Datum(tokens, {"target_tokens": one, "weights": np.ones(one.shape, np.float32)})]
    return engine.forward_backward(adapter, data, CROSS_ENTROPY)
before = engine.sample(None, small).result().sequences[0].tokens
train(1).result()
pages = int(open("/proc/self/statm").read().split()[0])
room = pages * resource.getpagesize() + (40 << 20)
resource.setrlimit(resource.RLIMIT_AS, (room, resource.RLIM_INFINITY))
long = engine.sample(None, SampleRequest(tokens[:40], SamplingParams(max_tokens=60, stop=())))
failed = [engine.sample(None, large).exception(), train(4000).exception()]
assert all(isinstance(one, EngineCapacityError) for one in failed), failed
assert len(long.result().sequences[0].tokens) == 60
after = engine.sample(None, small).result().sequences[0].tokens
assert before.tolist() == after.tolist()
assert engine.optim_step(adapter, AdamParams()).result()["grad_norm"] > 0
engine.close()
print("survived")
"""


@pytest.mark.slow
def test_out_of_memory_fails_that_request_alone(tmp_path: Path) -> None:
    tiny_model(vocab_size=50_000).save_pretrained(tmp_path / "wide")
    command = [sys.executable, "-c", SHORT_OF_MEMORY, str(tmp_path / "wide")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "survived", done.stderr[-3000:]
