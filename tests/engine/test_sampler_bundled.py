"""The bundled model through the engine, in fp32 and in bf16."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hermes.engine.engine import Engine
from hermes.engine.info import EngineOptions
from hermes.engine.types import Datum, LoraConfig, Loss, SampleRequest, SamplingParams
from hermes.models.local.bundled import model_folder
from tests.engine.processor import needs_bf16

GAP = {"float32": 1e-3, "bfloat16": 0.3}
"""Largest difference between a sampled logprob and the trainer's. In bf16 logits are rounded to 3 digits."""


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=needs_bf16)])
def test_a_chat_of_two_turns_with_stops_cache_and_the_trainers_logprobs(
    bundled_home: Path, dtype: str
) -> None:
    from transformers import AutoTokenizer

    folder = model_folder(bundled_home)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    engine = Engine(EngineOptions(str(folder), device="cpu", dtype=dtype, kv_bytes=128 << 20, max_length=512))
    engine.start()
    try:
        adapter = engine.create_adapter(LoraConfig(rank=4, seed=1)).result()
        policy = engine.snapshot(adapter).result()
        chat = [{"role": "user", "content": "What is the capital of France? One word."}]
        first = np.array(tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False))
        greedy = SamplingParams(max_tokens=20, temperature=0.0)
        said = engine.sample(policy, SampleRequest(first, greedy)).result().sequences[0]
        assert "Paris" in tokenizer.decode(said.tokens) and said.stop_reason == "stop"
        more = tokenizer.encode("\n<|im_start|>user\nAnd of Italy?<|im_end|>\n<|im_start|>assistant\n")
        turn = np.concatenate([first, said.tokens, np.array(more)])
        stopped = SamplingParams(max_tokens=30, temperature=0.0, stop=("Rome",))
        result = engine.sample(policy, SampleRequest(turn, stopped)).result()
        assert result.cached_tokens == len(first) + len(said.tokens) - 1
        assert str(tokenizer.decode(result.sequences[0].tokens)).endswith("Rome")
        drawn = SamplingParams(max_tokens=12, stop=(), seed=4)
        for one in engine.sample(policy, SampleRequest(turn, drawn, num_samples=2)).result().sequences:
            whole = np.concatenate([turn, one.tokens])
            inputs = {"target_tokens": whole[1:], "weights": np.ones(len(whole) - 1, np.float32)}
            scored = engine.forward_backward(
                adapter, [Datum(whole[:-1], inputs)], Loss("cross_entropy"), forward_only=True
            )
            gap = np.abs(scored.result().logprobs[0][len(turn) - 1 :] - one.logprobs)
            assert gap.max() < GAP[dtype]
    finally:
        engine.close()
