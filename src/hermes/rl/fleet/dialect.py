"""How vLLM and SGLang load adapters, sample with one, and name the weights in their answers. Pure.

Every version of the weights is an adapter with a name of its own: a server that does not have it cannot
answer with another. vLLM's answer names the adapter too, and is checked. SGLang's does not.
"""

from __future__ import annotations

from dataclasses import dataclass

from hermes.core import JSON, JSONObject, explicit_sampling
from hermes.errors import ProviderError
from hermes.models.fields import as_object, as_text
from hermes.models.tokens.traces import sampled_of

_GENERATE = "/generate"
_OPENAI_PATHS = ("/v1/completions", "/v1/chat/completions")
_ONLY_LIKELIEST = 1e-6
"""A top_p that leaves one token. Unlike top_k 1 it does not switch SGLang to greedy decoding."""
_SAME = 1e-4
"""Nats; two requests of one server differ by less."""
PROBE_TEMPERATURES = (1.0, 2.0)
PROBE_PROMPT = (3, 5, 7, 11, 13)


@dataclass(frozen=True, slots=True)
class FleetDialect:
    name: str
    load_path: str
    unload_path: str
    sample_paths: tuple[str, ...]
    """The first takes and returns token ids."""
    start_hint: str
    """How a server is started that can load adapters."""
    logprobs_hint: str
    """The parameters that make the logprobs those of the distribution that is sampled from."""

    def request(self, path: str, body: JSONObject, weights: WeightsName) -> JSONObject:
        """The request of an environment, for these weights, with nothing left to the server's defaults."""
        if self is VLLM:
            return {**explicit_sampling(body), "model": weights.model}
        if path == _GENERATE:
            params = explicit_sampling(as_object(body.get("sampling_params")))
            named: JSONObject = {**_without(body, "model", "lora_path"), "sampling_params": params}
            return named if weights.adapter is None else {**named, "lora_path": weights.adapter}
        # Any other name than BASE:ADAPTER is answered by the base model.
        name = weights.base_model if weights.adapter is None else f"{weights.base_model}:{weights.adapter}"
        return {**explicit_sampling(_without(body, "lora_path")), "model": name}

    def sampling(self, path: str, request: JSONObject) -> JSONObject | None:
        """The sampling parameters of such a request; None: it asks for no logprobs."""
        if path == _GENERATE:
            return as_object(request["sampling_params"]) if request.get("return_logprob") else None
        logprobs = request.get("logprobs")  # 0 asks for those of the sampled tokens
        return None if logprobs is None or logprobs is False else request

    def probe(self, temperature: float) -> JSONObject:
        """A request for one token, the likeliest, with its logprob."""
        if self is VLLM:
            fields = {"prompt": list(PROBE_PROMPT), "max_tokens": 1, "logprobs": 0, "return_token_ids": True}
            return {**fields, **probe_sampling(temperature)}
        params = {"max_new_tokens": 1, **probe_sampling(temperature)}
        return {"input_ids": list(PROBE_PROMPT), "sampling_params": params, "return_logprob": True}

    def probe_logprob(self, raw: JSONObject) -> float:
        """ProviderError: the answer has none."""
        choices = raw.get("choices")
        _, logprobs = sampled_of(choices[0] if isinstance(choices, list) and choices else raw)
        if not logprobs:
            raise ProviderError("the answer has no logprobs and ids of the sampled tokens")
        return logprobs[0]

    def answer(self, path: str, raw: JSON, weights: WeightsName, version: str) -> JSON:
        """With the version of the weights in it. ProviderError: other weights sampled."""
        if isinstance(raw, list):  # of /generate, for n over 1 or several prompts
            return [self.answer(path, sample, weights, version) for sample in raw]
        if not isinstance(raw, dict):
            raise ProviderError(f"the answer is {str(raw)[:100]}")
        if self is VLLM and as_text(raw.get("model")) != weights.model:
            raise ProviderError(f"the answer is of '{raw.get('model')}', and '{weights.model}' was requested")
        key = "meta_info" if path == _GENERATE else "metadata"
        return {**raw, key: {**as_object(raw.get(key)), "weight_version": version}}


@dataclass(frozen=True, slots=True)
class WeightsName:
    """The name of weights on a server."""

    base_model: str
    adapter: str | None
    """None: the base model itself."""

    @property
    def model(self) -> str:
        return self.base_model if self.adapter is None else self.adapter


def _without(body: JSONObject, *names: str) -> JSONObject:
    return {name: value for name, value in body.items() if name not in names}


VLLM = FleetDialect(
    "vllm",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    _OPENAI_PATHS,
    "start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 vllm serve MODEL --enable-lora --max-lora-rank RANK "
    "--logprobs-mode processed_logprobs",
    "start vLLM with --logprobs-mode processed_logprobs, or sample at temperature 1 without top_p and top_k",
)
SGLANG = FleetDialect(
    "sglang",
    "/load_lora_adapter",
    "/unload_lora_adapter",
    (_GENERATE, *_OPENAI_PATHS),
    "start it with --enable-lora --max-lora-rank RANK --lora-target-modules all",
    "sample without top_p, top_k and min_p: SGLang's logprobs leave them out",
)
DIALECTS = {dialect.name: dialect for dialect in (VLLM, SGLANG)}


@dataclass(frozen=True, slots=True)
class LogprobScale:
    """The parameters that the logprobs of a server take into account."""

    temperature: bool
    truncation: bool
    """top_p, top_k, min_p."""

    @classmethod
    def of(cls, at_one: float, at_two: float) -> LogprobScale:
        """From the logprob of the likeliest token, drawn alone at the two temperatures."""
        if abs(at_one) < _SAME:
            return cls(True, True)
        return cls(abs(at_two - at_one) > _SAME, False)

    def missing(self, sampling: JSONObject) -> str | None:
        """The parameter of a request that the logprobs would not take into account; None: they are right.

        `sampling`: every parameter explicit. At temperature 0 the logprobs are those at temperature 1.
        """
        temperature = _number(sampling.get("temperature"), 1.0)
        if not temperature:
            return None
        if temperature != 1 and not self.temperature:
            return f"temperature {temperature:g}"
        truncates = {
            "top_p": _number(sampling.get("top_p"), 1.0) < 1,
            "top_k": _number(sampling.get("top_k"), -1.0) > 0,
            "min_p": _number(sampling.get("min_p"), 0.0) > 0,
        }
        name = next((name for name, is_set in truncates.items() if is_set), None)
        return None if name is None or self.truncation else f"{name} {sampling[name]}"


def probe_sampling(temperature: float) -> JSONObject:
    """The sampling of a request that can only give the likeliest token."""
    return {"temperature": temperature, "top_p": _ONLY_LIKELIEST}


def _number(value: JSON, default: float) -> float:
    """The server refuses a value that is no number."""
    return float(value) if isinstance(value, int | float) else default
