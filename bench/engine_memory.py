"""What the engine's process holds after hundreds of adapters and thousands of mixed requests.

    python bench/engine_memory.py [--model FOLDER] [--adapters 500] [--requests 2000] [--kv-gib 1]

Two phases follow the loading of the model. `adapters`: each is created, trained for one step, frozen, sampled
from and deleted. `mixed`: short samples, long prompts, logprobs of prompts, and training with lengths that
change with every call, by eight adapters. Printed after each part: the resident memory of the process, what
malloc has in use, how much of that is tensors that Python can reach, what malloc holds free, and the peak
since the part before. `--keep-freed` switches off the return of freed memory, which shows what that does.
Linux only. The engine runs in this process, without its HTTP server.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch

from hermes.core.memory import read_kilobytes
from hermes.engine import compute
from hermes.engine.engine import Engine
from hermes.engine.info import EngineOptions
from hermes.engine.memory import peak_bytes, reset_peak
from hermes.engine.types import AdamParams, Datum, LoraConfig, Loss, SampleRequest, SamplingParams

RANK = 8
PARTS = 10
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Memory of this process; 0 where the system does not report it."""

    rss_bytes: int
    heap_used_bytes: int
    """Allocated by malloc and in use, without large blocks."""
    heap_free_bytes: int
    """Freed and not returned to the system, or returned and still reserved."""
    mapped_bytes: int
    """Large blocks in use, each mapped on its own: freeing one returns it."""


def process_memory() -> ProcessMemory:
    rss_bytes = read_kilobytes("/proc/self/status", "VmRSS")
    library = _glibc()
    if library is None:
        return ProcessMemory(rss_bytes, 0, 0, 0)
    info = library.mallinfo2()
    return ProcessMemory(rss_bytes, info.uordblks, info.fordblks, info.hblkhd)


class _Mallinfo2(ctypes.Structure):
    """The result of glibc's mallinfo2, in its order."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    )


@cache
def _glibc() -> ctypes.CDLL | None:
    """The C library of this process, if it is glibc 2.33 or newer."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2"):
        return None
    library.mallinfo2.restype = _Mallinfo2
    return library


@dataclass(frozen=True, slots=True)
class Point:
    part: str
    done: int
    """Adapters or requests so far."""
    rss_mb: int
    heap_used_mb: int
    heap_free_mb: int
    mapped_mb: int
    tensors_mb: int
    """Tensors that Python can reach; the rest of what is in use belongs to libraries."""
    peak_mb: int
    seconds: float


class Measurement:
    def __init__(self, out: Callable[[str], object]) -> None:
        self.points: list[Point] = []
        self._out = out
        self._began_s = time.monotonic()

    def point(self, part: str, done: int) -> None:
        memory = process_memory()
        point = Point(
            part,
            done,
            memory.rss_bytes >> 20,
            memory.heap_used_bytes >> 20,
            memory.heap_free_bytes >> 20,
            memory.mapped_bytes >> 20,
            live_tensor_bytes() >> 20,
            peak_bytes(CPU) >> 20,
            round(time.monotonic() - self._began_s, 1),
        )
        reset_peak(CPU)
        self.points.append(point)
        used_mb = point.heap_used_mb + point.mapped_mb
        self._out(
            f"{part:<10} {done:5d}  RSS {point.rss_mb:5d} MB  in use {used_mb:5d}  "
            f"tensors {point.tensors_mb:5d}  free {point.heap_free_mb:5d}  peak {point.peak_mb:5d}  "
            f"{point.seconds:7.1f} s\n"
        )
        sys.stdout.flush()


def live_tensor_bytes() -> int:
    """The storages of all tensors that Python can reach, each once; a prepacked matrix by its elements."""
    sizes: dict[int, int] = {}
    for candidate in gc.get_objects():
        if not issubclass(type(candidate), torch.Tensor):
            continue
        if candidate.layout is torch.strided:
            storage = candidate.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
        else:
            sizes[id(candidate)] = candidate.numel() * candidate.element_size()
    return sum(sizes.values())


class Load:
    """Calls with lengths that never repeat for long."""

    def __init__(self, engine: Engine, longest: int) -> None:
        self._engine = engine
        self._longest = longest
        self._random = np.random.default_rng(5)

    def tokens(self, least: int, most: int) -> tuple[int, ...]:
        length = int(self._random.integers(least, max(least, min(most, self._longest)) + 1))
        return tuple(int(token) for token in self._random.integers(10, self._engine.spec.vocab, length))

    def train(self, adapter: str, sequences: int, most: int) -> None:
        data = []
        for _ in range(sequences):
            tokens = self.tokens(8, most)
            size = len(tokens) - 1
            inputs = {"weights": np.ones(size, np.float32), "target_tokens": np.array(tokens[1:])}
            data.append(Datum(np.array(tokens[:-1]), inputs))
        self._engine.forward_backward(adapter, data, Loss("cross_entropy")).result()
        self._engine.optim_step(adapter, AdamParams(learning_rate=1e-4)).result()

    def sample(
        self, policy: str | None, prompt: tuple[int, ...], count: int, most: int, scored: bool
    ) -> None:
        params = SamplingParams(max_tokens=most)
        request = SampleRequest(np.array(prompt), params, num_samples=count, prompt_logprobs=scored)
        self._engine.sample(policy, request).result()

    def adapter(self) -> None:
        """One that is created, trained, frozen, sampled from and deleted."""
        engine = self._engine
        name = engine.create_adapter(LoraConfig(rank=RANK)).result()
        self.train(name, 1, 48)
        policy = engine.snapshot(name).result()
        self.sample(policy, self.tokens(8, 24), 1, 2, scored=False)
        engine.drop_policy(policy)
        engine.drop_adapter(name)

    def request(self, number: int, adapters: list[str], policies: list[str]) -> None:
        index = number // 4 % len(adapters)
        match number % 4:
            case 0:
                self.sample(policies[index], self.tokens(8, 64), 4, 8, scored=False)
            case 1:
                self.sample(None, self.tokens(200, 1200), 1, 2, scored=False)
            case 2:
                self.sample(policies[index], self.tokens(50, 400), 1, 1, scored=True)
            case _:
                self.train(adapters[index], 1 + number % 3, 300)
                self._engine.drop_policy(policies[index])
                policies[index] = self._engine.snapshot(adapters[index]).result()


def main() -> None:
    parser = argparse.ArgumentParser(description="memory of the engine over a long use")
    parser.add_argument("--model", type=Path, help="a model's folder; default: the bundled one")
    parser.add_argument("--adapters", type=int, default=500)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--kv-gib", type=float, default=1.0)
    parser.add_argument("--longest", type=int, default=1200, help="most tokens of a sequence")
    parser.add_argument("--keep-freed", action="store_true", help="do not return freed memory")
    parser.add_argument("--json", type=Path, help="where the points are written")
    options = parser.parse_args()
    if options.keep_freed:
        compute.FreedMemory.trim_if_grown = lambda memory: None  # type: ignore[method-assign]
    measurement = Measurement(sys.stdout.write)
    engine = Engine(
        EngineOptions(str(options.model or _bundled()), "cpu", kv_bytes=int(options.kv_gib * 2**30))
    )
    engine.start()
    try:
        measurement.point("loaded", 0)
        measure(engine, measurement, options.adapters, options.requests, options.longest)
    finally:
        engine.close()
    if options.json:
        rows = [asdict(point) for point in measurement.points]
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def measure(engine: Engine, measurement: Measurement, adapters: int, requests: int, longest: int) -> None:
    load = Load(engine, longest)
    number = 0
    for end in _ends(adapters):
        while number < end:
            load.adapter()
            number += 1
        measurement.point("adapters", end)
    trained = [engine.create_adapter(LoraConfig(rank=RANK)).result() for _ in range(8)]
    policies = [engine.snapshot(name).result() for name in trained]
    number = 0
    for end in _ends(requests):
        while number < end:
            load.request(number, trained, policies)
            number += 1
        measurement.point("mixed", end)
    for name, policy in zip(trained, policies, strict=True):
        engine.drop_policy(policy)
        engine.drop_adapter(name)


def _ends(count: int) -> Iterator[int]:
    step = max(1, count // PARTS)
    yield from range(step, count + 1, step)


def _bundled() -> Path:
    from hermes.config.paths import home
    from hermes.models.local.bundled import prepare

    return prepare(home())


if __name__ == "__main__":
    main()
