"""Print what a GGUF file holds: architecture, size, types of its tensors, context, chat template.

With --kv-tokens it also computes the KV cache for that many tokens. Exit code 1: the file is not readable
as GGUF, or holds values that are not finite (float tensors only, with --finite).
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from typing import Any


def value(reader: Any, key: str) -> Any:
    field = reader.get_field(key)
    return None if field is None else field.contents()


def kv_bytes(reader: Any, architecture: str, tokens: int) -> int | None:
    """Two numbers of 16 bits for each layer, KV head, dimension and token; None: the header does not say."""
    layers = value(reader, f"{architecture}.block_count")
    heads = value(reader, f"{architecture}.attention.head_count")
    kv_heads = value(reader, f"{architecture}.attention.head_count_kv") or heads
    width = value(reader, f"{architecture}.embedding_length")
    if not all(isinstance(number, int) for number in (layers, heads, kv_heads, width)):
        return None
    head_size = value(reader, f"{architecture}.attention.key_length") or width // heads
    return 2 * layers * kv_heads * head_size * tokens * 2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--kv-tokens", type=int, help="Compute the KV cache for so many tokens")
    parser.add_argument("--finite", action="store_true", help="Check float tensors for nan and infinity")
    options = parser.parse_args()
    import numpy
    from gguf import GGUFReader

    try:
        reader = GGUFReader(options.file)
    except (OSError, ValueError) as error:
        print(f"{options.file} cannot be read as GGUF: {error}")
        return 1
    architecture = value(reader, "general.architecture")
    weights = sum(int(tensor.n_elements) for tensor in reader.tensors)
    size = sum(int(tensor.n_bytes) for tensor in reader.tensors)
    print(f"architecture {architecture}, name {value(reader, 'general.name')}")
    print(f"{weights:,} weights, {size / 1e9:.3f} GB, {8 * size / weights:.2f} bits a weight")
    types: Counter[str] = Counter()
    for tensor in reader.tensors:
        types[tensor.tensor_type.name] += int(tensor.n_elements)
    for name, count in types.most_common():
        print(f"  {name}: {100 * count / weights:.1f} % of the weights")
    print(f"context {value(reader, f'{architecture}.context_length')} tokens")
    template = value(reader, "tokenizer.chat_template")
    print(f"chat template: {f'{len(template)} characters' if template else 'none'}")
    print(f"end token id: {value(reader, 'tokenizer.ggml.eos_token_id')}")
    if options.kv_tokens:
        cache = kv_bytes(reader, architecture, options.kv_tokens)
        print("KV cache: unknown" if cache is None else f"KV cache in 16 bits: {cache / 1e9:.3f} GB")
    if options.finite:
        floats = [tensor for tensor in reader.tensors if tensor.tensor_type.name in ("F32", "F16")]
        bad = [tensor.name for tensor in floats if not numpy.isfinite(tensor.data).all()]
        print(f"float tensors: {len(floats)}, with values that are not finite: {', '.join(bad) or 'none'}")
        return 1 if bad else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
