"""How vLLM and SGLang load adapters, sample with one, and name the weights in their answers. Pure.

Every version of the weights is an adapter with a name of its own: a server that does not have it cannot
answer with another. vLLM's answer names the adapter too, and is checked. SGLang's does not.
"""

from __future__ import annotations

from dataclasses import dataclass

from hermes.core import JSONObject
from hermes.errors import ProviderError
from hermes.models.fields import as_object, as_text


@dataclass(frozen=True, slots=True)
class FleetDialect:
    name: str
    load_path: str
    unload_path: str
    sample_path: str
    start_hint: str
    """How a server is started that can load adapters."""

    def request(self, body: JSONObject, model: str, *, is_base: bool) -> JSONObject:
        """The request of an environment, for these weights."""
        if self is VLLM:
            return {**body, "model": model}
        named = {key: value for key, value in body.items() if key not in ("model", "lora_path")}
        return named if is_base else {**named, "lora_path": model}

    def answer(self, raw: JSONObject, model: str, version: str) -> JSONObject:
        """With the version of the weights in it. ProviderError: other weights sampled."""
        if self is VLLM:
            if as_text(raw.get("model")) != model:
                raise ProviderError(f"the answer is of '{raw.get('model')}', and '{model}' was requested")
            return {**raw, "metadata": {**as_object(raw.get("metadata")), "weight_version": version}}
        return {**raw, "meta_info": {**as_object(raw.get("meta_info")), "weight_version": version}}


VLLM = FleetDialect(
    "vllm",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/v1/completions",
    "start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 vllm serve MODEL --enable-lora --max-lora-rank RANK",
)
SGLANG = FleetDialect(
    "sglang",
    "/load_lora_adapter",
    "/unload_lora_adapter",
    "/generate",
    "start it with --enable-lora --max-lora-rank RANK --lora-target-modules all",
)
DIALECTS = {dialect.name: dialect for dialect in (VLLM, SGLANG)}
