"""What a base model in 4 and 8 bits costs: memory, losses on held-out text, LoRA training from three seeds.

    python bench/quantized.py [--model FOLDER] [--kinds none int8 nf4] [--seeds 3] [--steps 8] [--rows 8]
                              [--tokens 128] [--device auto] [--dtype auto] [--json FILE]

Every kind runs in a process of its own. The text is this repository's documentation: pages in the order of
their names, every fourth of which is held out. All seeds train on the same rows in the same order; a seed is
that of the adapter's first weights. A loss is the mean over the tokens of the held-out rows, in nats.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
HELD_OUT_EVERY = 4
RANK = 16


def rows_of(tokenizer: Any, pages: Sequence[Path], count: int, length: int) -> list[list[int]]:
    """The first `length` tokens of parts of the pages, in turn, until there are `count` rows."""
    texts = [tokenizer.encode(page.read_text("utf-8")) for page in pages]
    rows: list[list[int]] = []
    for start in range(0, max(map(len, texts)), length):
        rows += [ids[start : start + length] for ids in texts if len(ids) >= start + length]
    assert len(rows) >= count, f"the text has only {len(rows)} rows of {length} tokens"
    return rows[:count]


def measure(arguments: argparse.Namespace, kind: str) -> dict[str, Any]:
    import numpy as np
    from transformers import AutoTokenizer

    from hermes.core.memory import read_kilobytes
    from hermes.engine.engine import Engine
    from hermes.engine.info import EngineOptions
    from hermes.engine.memory import peak_bytes, reset_peak, trim_heap
    from hermes.engine.types import (
        AdamParams,
        Datum,
        LoraConfig,
        Loss,
        SampleRequest,
        SamplingParams,
    )

    options = EngineOptions(
        arguments.model,
        device=arguments.device,
        dtype=arguments.dtype,
        quantize=None if kind == "none" else kind,
        kv_bytes=64 << 20,
        max_length=512,
    )
    began_s = time.monotonic()
    engine = Engine(options)
    engine.start()
    load_s = time.monotonic() - began_s
    pages = sorted((ROOT / "docs").glob("*.md"))
    tokenizer: Any = AutoTokenizer.from_pretrained(arguments.model)
    count = arguments.rows * arguments.steps
    train = rows_of(
        tokenizer, [page for i, page in enumerate(pages) if i % HELD_OUT_EVERY], count, arguments.tokens
    )
    held_out = rows_of(tokenizer, pages[::HELD_OUT_EVERY], arguments.held_out, arguments.tokens)

    def datum_of(ids: Any) -> Datum:
        inputs = {"target_tokens": ids[1:], "weights": np.ones(len(ids) - 1, np.float32)}
        return Datum(ids[:-1], inputs)

    def data(rows: Sequence[Sequence[int]]) -> list[Datum]:
        return [datum_of(np.array(ids)) for ids in rows]

    def loss(adapter: str) -> float:
        output = engine.forward_backward(adapter, data(held_out), Loss("cross_entropy"), True).result()
        return -float(np.concatenate(output.logprobs).astype(np.float64).mean())

    trim_heap()
    if engine.device.type == "cuda":
        import torch

        loaded_bytes = torch.cuda.memory_allocated()
    else:
        loaded_bytes = read_kilobytes("/proc/self/status", "VmRSS")
    reset_peak(engine.device)
    losses, train_s, mismatch = [], 0.0, 0.0
    for seed in range(arguments.seeds):
        adapter = engine.create_adapter(LoraConfig(rank=RANK, seed=seed)).result()
        before = loss(adapter)
        began_s = time.monotonic()
        for step in range(arguments.steps):
            batch = data(train[step * arguments.rows : (step + 1) * arguments.rows])
            engine.forward_backward(adapter, batch, Loss("cross_entropy")).result()
            engine.optim_step(adapter, AdamParams(learning_rate=5e-4)).result()
        train_s += time.monotonic() - began_s
        losses.append({"seed": seed, "before": before, "after": loss(adapter)})
        policy = engine.snapshot(adapter).result()
        beginning = np.array(held_out[0][:32])
        params = SamplingParams(max_tokens=32, seed=seed, stop=())
        (sequence,) = engine.sample(policy, SampleRequest(beginning, params, 1)).result().sequences
        ids = np.concatenate([beginning, sequence.tokens])
        output = engine.forward_backward(adapter, data([ids]), Loss("cross_entropy"), True).result()
        mismatch = max(mismatch, float(np.abs(output.logprobs[0][31:] - sequence.logprobs).max()))
        engine.drop_policy(policy)
        engine.drop_adapter(adapter)
    report = {
        "kind": kind,
        "device": str(engine.device),
        "dtype": str(engine.dtype).removeprefix("torch."),
        "base_mib": round(engine.stats().base_bytes / 2**20, 1),
        "loaded_mib": round(loaded_bytes / 2**20),
        "peak_mib": round(peak_bytes(engine.device) / 2**20),
        "load_s": round(load_s, 1),
        "train_s": round(train_s, 1),
        "largest_logprob_difference": mismatch,
        "losses": losses,
    }
    engine.close()
    return report


def summary(reports: Sequence[dict[str, Any]]) -> str:
    lines = ["kind   base MiB  loaded MiB  peak MiB  before  after (each seed)        sampler - trainer"]
    for report in reports:
        after = [entry["after"] for entry in report["losses"]]
        mean = math.fsum(after) / len(after)
        lines.append(
            f"{report['kind']:<6} {report['base_mib']:>8} {report['loaded_mib']:>11} {report['peak_mib']:>9} "
            f"{report['losses'][0]['before']:>7.4f}  {' '.join(f'{value:.4f}' for value in after)} "
            f"mean {mean:.4f}  {report['largest_logprob_difference']:.1e}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model")
    parser.add_argument(
        "--kinds", nargs="+", default=["none", "int8", "nf4"], choices=["none", "int8", "nf4"]
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rows", type=int, default=8, help="Rows of a step.")
    parser.add_argument("--held-out", type=int, default=32, help="Rows that are never trained on.")
    parser.add_argument("--tokens", type=int, default=128, help="Tokens of a row.")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--kind", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.model is None:
        from hermes.config.paths import home
        from hermes.models.local import bundled

        arguments.model = str(bundled.prepare(home(), lambda line: None))
    if arguments.kind is not None:
        sys.stdout.write(json.dumps(measure(arguments, arguments.kind)) + "\n")
        return
    names = ("model", "seeds", "steps", "rows", "held_out", "tokens", "device", "dtype")
    flags = [
        word for name in names for word in (f"--{name.replace('_', '-')}", str(getattr(arguments, name)))
    ]
    reports = []
    for kind in arguments.kinds:
        command = [sys.executable, __file__, *flags, "--kind", kind]
        reply = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        reports.append(json.loads(reply.stdout.splitlines()[-1]))
        sys.stdout.write(summary(reports[-1:]) + "\n")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(reports, indent=1) + "\n")


if __name__ == "__main__":
    main()
