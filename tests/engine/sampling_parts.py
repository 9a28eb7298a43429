"""A sampler on a tiny model, driven in the test's own thread, and what a plain forward pass says about it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hermes.engine.attention.kv_cache import KvPool
from hermes.engine.lora.adapter import Adapter
from hermes.engine.lora.weights import Policy
from hermes.engine.model.backbone import Backbone
from hermes.engine.model.load import wrap_model
from hermes.engine.sampling.prefill import PrefillLimits
from hermes.engine.sampling.request import SampleJob, SamplerLimits, parse_request
from hermes.engine.sampling.runner import PrefillChunk, TorchRunner
from hermes.engine.sampling.scheduler import SamplingScheduler
from hermes.engine.sampling.stops import StopParser
from hermes.engine.types import (
    Floats,
    Ints,
    LoraConfig,
    SampledSequence,
    SampleRequest,
    SampleResult,
    SamplingParams,
)
from tests.engine.tiny import SHAPE, tiny_model

BASE = Policy(None, None, None)


@cache
def tiny_tokenizer() -> Any:
    """Byte-level, 512 tokens: learned from a little text with characters of several bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    text = [
        "stop here, stop there; grüße from 東京 and 京都 🙂🙂 " * 3,
        "the cat sat on the mat </tool_call>\n" * 3,
    ]
    bare = Tokenizer(models.BPE())
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bare.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<pad>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(vocab_size=512, special_tokens=special, initial_alphabet=alphabet)
    bare.train_from_iterator(text, trainer)
    make: Any = PreTrainedTokenizerFast
    return make(tokenizer_object=bare, eos_token="</s>", bos_token="<s>", pad_token="<pad>")


@cache
def _model(family: str) -> Any:
    return tiny_model(family)


@cache
def _backbone(family: str) -> Backbone:
    return wrap_model(tiny_model(family), family)


class Bench:
    """One tiny model with a sampler over it."""

    def __init__(
        self,
        family: str = "llama",
        *,
        kv_tokens: int = 4096,
        max_batch: int = 32,
        prefill_tokens: int = 64,
        runner: type[TorchRunner] = TorchRunner,
    ) -> None:
        self.model = _model(family)
        self.backbone = _backbone(family)
        spec = self.backbone.spec
        self.pool = KvPool(spec, kv_tokens, self.backbone.device, self.backbone.dtype)
        self.runner = runner(self.backbone, self.pool)
        self.sampler = SamplingScheduler(self.runner, kv_tokens, max_batch, PrefillLimits(prefill_tokens))
        self.limits = SamplerLimits(spec.vocab, spec.max_length, kv_tokens)
        self.stops = StopParser(tiny_tokenizer, spec.eos_ids, spec.vocab)

    def ask(self, prompt: Ints, policy: Policy = BASE, **wishes: Any) -> SampleJob:
        """A submitted request; fields of both of its types by name. By default nothing stops it."""
        params = {name: wishes.pop(name) for name in list(wishes) if name in SamplingParams.__slots__}
        asked = SamplingParams(**{"max_tokens": 8, "stop": (), **params})
        request = SampleRequest(prompt, asked, **wishes)
        job = parse_request(request, policy, self.limits, self.stops)
        self.sampler.submit(job)
        return job

    def run(self, *jobs: SampleJob) -> list[SampleResult]:
        while self.sampler.busy:
            self.sampler.step()
        return [job.future.result(timeout=0) for job in jobs]

    def sample(self, prompt: Ints, policy: Policy = BASE, **wishes: Any) -> SampleResult:
        return self.run(self.ask(prompt, policy, **wishes))[0]

    def policy(self, name: str, seed: int, rank: int = 4) -> Policy:
        """A policy that differs clearly from the base model."""
        adapter = Adapter(self.backbone.spec, LoraConfig(rank=rank, seed=seed), self.backbone.device)
        torch.manual_seed(seed)
        with torch.no_grad():
            adapter.parameters.add_(0.05 * torch.randn_like(adapter.parameters))
        weights = adapter.freeze()
        return Policy(name, weights, weights)

    def logits(self, tokens: Sequence[int] | Ints) -> torch.Tensor:
        """What transformers itself gives, [T, vocab] fp32."""
        with torch.inference_mode():
            found: torch.Tensor = self.model(torch.tensor([list(tokens)])).logits[0].float()
        return found

    def logprobs(self, prompt: Ints, sampled: Ints, temperature: float = 1.0) -> Floats:
        """Of the sampled tokens after the prompt, from one full forward pass."""
        table = torch.log_softmax(self.logits([*prompt, *sampled]) / temperature, -1)
        rows = table[len(prompt) - 1 : -1].gather(1, torch.from_numpy(sampled)[:, None])
        found: Floats = rows[:, 0].numpy()
        return found


def prompt(size: int, seed: int = 0) -> Ints:
    return np.random.default_rng(seed).integers(3, SHAPE["vocab_size"], size)


def same(left: SampledSequence, right: SampledSequence, tolerance: float = 1e-4) -> bool:
    close = np.allclose(left.logprobs, right.logprobs, atol=tolerance)
    return left.tokens.tolist() == right.tokens.tolist() and close and left.stop_reason == right.stop_reason


def count_prefilled(bench: Bench) -> list[int]:
    """Sizes of all chunks computed from now on, noted around the runner's own."""
    sizes: list[int] = []
    prefill = bench.runner.prefill

    def counting(chunks: Sequence[PrefillChunk]) -> list[Tensor]:
        sizes.extend(len(chunk.tokens) for chunk in chunks)
        return prefill(chunks)

    bench.runner.prefill = counting
    return sizes


def policies(bench: Bench, count: int) -> list[Policy]:
    return [bench.policy(f"p{number}", seed=number) for number in range(count)]
