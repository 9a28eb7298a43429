"""Sampled tokens per second by the number of policies in the batch, and how far sampler and trainer differ.

    python bench/many_policies.py MODEL_FOLDER --output many.json [--policies 1,4,16,64] [--rows 512,1024]

Every policy is an adapter of its own that has trained a step, and has the same number of rows. A round
samples `--tokens` tokens for each row; the best of `--repeat` rounds counts, after one that captures and
compiles.
`--gap` scores every sampled token by the training call of the policy's adapter and reports |difference|.
`--compare SRC` measures the source folder of another commit in the same run, in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from hermes.engine.engine import Engine
from hermes.engine.info import EngineOptions
from hermes.engine.types import AdamParams, Datum, LoraConfig, Loss, SampleRequest, SamplingParams


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("model", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--quantize")
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--policies", default="1,2,3,4,8,16,32,64")
    parser.add_argument("--rows", default="512,1024")
    parser.add_argument("--prompt", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--kv-gib", type=float)
    parser.add_argument("--gap", action="store_true")
    parser.add_argument("--compare", type=Path, help="the src folder of another commit")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    report = measure(options)
    if options.compare:
        report["compared"] = measure_other(options.compare)
    options.output.write_text(json.dumps(report, indent=1) + "\n")


def measure_other(source: Path) -> dict[str, Any]:
    """The same measurement with the package of another commit."""
    arguments = sys.argv[1:]
    index = arguments.index("--compare")
    del arguments[index : index + 2]
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "other.json"
        arguments[arguments.index("--output") + 1] = str(output)
        environ = {**os.environ, "PYTHONPATH": f"{source.absolute()}:{os.environ.get('PYTHONPATH', '')}"}
        subprocess.run([sys.executable, __file__, *arguments], env=environ, check=True)
        other: dict[str, Any] = json.loads(output.read_text())
        return other


def measure(options: argparse.Namespace) -> dict[str, Any]:
    counts = [int(count) for count in options.policies.split(",")]
    sizes = [int(rows) for rows in options.rows.split(",")]
    engine_options = EngineOptions(
        str(options.model),
        options.device,
        options.dtype,
        kv_bytes=int(options.kv_gib * 2**30) if options.kv_gib else None,
        max_batch=max(sizes),
        exact=options.exact,
        quantize=options.quantize,
        max_adapters=max(counts) + 1,
    )
    report: dict[str, Any] = {"rank": options.rank, "rounds": []}
    with closing(Engine(engine_options)) as engine:
        engine.start()
        before = used_bytes()
        policies = [make_policy(engine, number, options) for number in range(max(counts))]
        report |= {"dtype": str(engine.dtype), "policies_bytes": used_bytes() - before}
        for rows in sizes:
            for count in counts:
                if count <= rows:
                    line = measure_round(engine, policies[:count], rows, options)
                    report["rounds"].append(line)
                    print(json.dumps(line), flush=True)
    return report


def make_policy(engine: Engine, seed: int, options: argparse.Namespace) -> tuple[str, str | None]:
    """A policy, and its adapter where the sampled tokens are scored."""
    adapter = engine.create_adapter(LoraConfig(rank=options.rank, seed=seed)).result()
    tokens = np.random.default_rng(seed).integers(3, 400, 65)
    text = Datum(tokens[:-1], {"target_tokens": tokens[1:], "weights": np.ones(64, np.float32)})
    for _ in range(2):
        engine.forward_backward(adapter, [text], Loss("cross_entropy")).result()
        engine.optim_step(adapter, AdamParams(learning_rate=1e-3)).result()
    policy = engine.snapshot(adapter).result()
    if options.gap:
        return policy, adapter
    engine.drop_adapter(adapter)
    return policy, None


def measure_round(
    engine: Engine, policies: list[tuple[str, str | None]], rows: int, options: argparse.Namespace
) -> dict[str, Any]:
    params = SamplingParams(options.tokens, seed=1, stop=())
    shares = [rows // len(policies) + (number < rows % len(policies)) for number in range(len(policies))]
    seconds, results = [], []
    for number in range(options.repeat + 1):
        rng = np.random.default_rng(number)
        prompts = [rng.integers(3, 400, options.prompt) for _ in policies]
        began_s = time.perf_counter()
        futures = [
            engine.sample(policy, SampleRequest(prompt, params, share))
            for (policy, _), prompt, share in zip(policies, prompts, shares, strict=True)
        ]
        results = [future.result() for future in futures]
        if number:  # the first captures graphs and compiles kernels
            seconds.append(time.perf_counter() - began_s)
    line = {
        "policies": len(policies),
        "rows": rows,
        "tokens_per_s": round(rows * options.tokens / min(seconds)),
        "seconds": [round(second, 4) for second in seconds],
    }
    if options.gap:
        line["gap"] = measure_gap(engine, policies, prompts, results)
    return line


def measure_gap(
    engine: Engine, policies: list[tuple[str, str | None]], prompts: list[Any], results: list[Any]
) -> dict[str, float]:
    """|sampler - trainer| at the sampled tokens of up to eight rows a policy."""
    gaps = []
    for (_, adapter), prompt, result in zip(policies, prompts, results, strict=True):
        assert adapter is not None
        sequences = result.sequences[:8]
        texts = [np.concatenate([prompt, sequence.tokens]) for sequence in sequences]
        data = [
            Datum(text[:-1], {"target_tokens": text[1:], "weights": np.ones(len(text) - 1, np.float32)})
            for text in texts
        ]
        output = engine.forward_backward(adapter, data, Loss("cross_entropy"), forward_only=True).result()
        gaps += [
            np.abs(logprobs[-len(sequence.tokens) :] - sequence.logprobs)
            for logprobs, sequence in zip(output.logprobs, sequences, strict=True)
        ]
    joined = np.concatenate(gaps)
    return {"mean": float(joined.mean()), "max": float(joined.max()), "unequal": float((joined > 0).mean())}


def used_bytes() -> int:
    import torch

    return torch.cuda.memory_allocated() if torch.cuda.is_available() else 0


if __name__ == "__main__":
    main()
