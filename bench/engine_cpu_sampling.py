"""How fast the engine samples on a CPU, against transformers' `generate` in the same run.

    python bench/engine_cpu_sampling.py <model folder> [--dtype bfloat16] [--threads 2] [--json]

The same prompts, the same number of new tokens, no stops, temperature 1, logprobs included in ours. Each
figure is the best of a few runs, ours and theirs in turns, because the machine may be busy otherwise.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from hermes.engine.bench_baseline import continued
from hermes.engine.engine import Engine
from hermes.engine.info import EngineOptions
from hermes.engine.types import LoraConfig, SampleRequest, SamplingParams

PROMPT_TOKENS = 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--new", type=int, default=64, help="tokens to sample per sequence")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 16, 64])
    parser.add_argument("--ours-only", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    engine = Engine(EngineOptions(args.model, device="cpu", dtype=args.dtype, kv_bytes=2 << 30))
    engine.start()
    theirs = None if args.ours_only else _load(args.model, args.dtype)
    for row in _rows(engine, theirs, args):
        print(json.dumps(row) if args.json else _line(row), flush=True)
    engine.close()


def _rows(engine: Engine, theirs: Any, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    yield _prefill(engine, theirs, args.repeat)
    for count in args.batches:
        yield _decode(engine, theirs, count, args.new, args.repeat)
    adapter = engine.create_adapter(LoraConfig()).result()
    policy = engine.snapshot(adapter).result()
    yield _decode(engine, theirs, args.batches[-1], args.new, args.repeat, policy)
    yield _group(engine, theirs, args.new, args.repeat)


def _load(model: str, dtype: str) -> Any:
    from transformers import AutoModelForCausalLM

    loaded: Any = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
    return loaded.eval()


def _prompts(count: int, tokens: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.random.default_rng().integers(100, 40_000, (count, tokens))


def _sample(engine: Engine, prompts: Any, new: int, samples: int = 1, policy: str | None = None) -> None:
    params = SamplingParams(max_tokens=new, stop=())
    futures = [engine.sample(policy, SampleRequest(one, params, samples)) for one in prompts]
    for future in futures:
        future.result()


def _prefill(engine: Engine, theirs: Any, repeat: int) -> dict[str, Any]:
    tokens = 16 * PROMPT_TOKENS

    def run_theirs() -> None:
        with torch.inference_mode():
            theirs(torch.from_numpy(_prompts(16, PROMPT_TOKENS)), logits_to_keep=1)

    ours, others = _best(
        repeat, lambda: _sample(engine, _prompts(16, PROMPT_TOKENS), 1), run_theirs if theirs else None
    )
    return _row("prefill 16 x 128", tokens, ours, others if theirs else None)


def _decode(
    engine: Engine, theirs: Any, count: int, new: int, repeat: int, policy: str | None = None
) -> dict[str, Any]:
    """Decode alone: the time of a whole run less the time of one with a single new token."""

    def ours(tokens: int) -> None:
        _sample(engine, _prompts(count, PROMPT_TOKENS), tokens, policy=policy)

    def others(tokens: int) -> None:
        continued(theirs, torch.from_numpy(_prompts(count, PROMPT_TOKENS)), tokens)

    long, short = (
        _best(repeat, partial(ours, tokens), partial(others, tokens) if theirs else None)
        for tokens in (new, 1)
    )
    name = f"decode {count} x {new}" + (" with an adapter" if policy else "")
    return _row(name, count * (new - 1), long[0] - short[0], long[1] - short[1] if theirs else None)


def _group(engine: Engine, theirs: Any, new: int, repeat: int) -> dict[str, Any]:
    """Whole requests: eight groups of eight, one prompt each."""
    ours, others = _best(
        repeat,
        lambda: _sample(engine, _prompts(8, PROMPT_TOKENS), new, samples=8),
        (lambda: continued(theirs, torch.from_numpy(np.repeat(_prompts(8, PROMPT_TOKENS), 8, axis=0)), new))
        if theirs
        else None,
    )
    return _row(f"8 groups of 8 x (128 + {new})", 64 * new, ours, others if theirs else None)


def _best(repeat: int, ours: Callable[[], None], theirs: Callable[[], object] | None) -> tuple[float, float]:
    """Seconds, ours and theirs; theirs is 0 where there is nothing to compare with."""
    times = [(_timed(ours), _timed(theirs) if theirs else 0.0) for _ in range(repeat)]
    return min(one for one, _ in times), min(other for _, other in times)


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _row(name: str, tokens: int, ours: float, theirs: float | None) -> dict[str, Any]:
    row: dict[str, Any] = {"what": name, "tokens_per_s": round(tokens / ours, 1)}
    if theirs is not None:
        row |= {"generate_tokens_per_s": round(tokens / theirs, 1), "times": round(theirs / ours, 2)}
    return row


def _line(row: dict[str, Any]) -> str:
    theirs = f"{row['generate_tokens_per_s']:>10.1f} {row['times']:>6.2f}x" if "times" in row else ""
    return f"{row['what']:<32} {row['tokens_per_s']:>10.1f} {theirs}"


if __name__ == "__main__":
    main()
