"""Which distribution a server's logprobs belong to, and whether that is the one a request samples from. Pure.

The trainer needs the logprob of a token under the distribution that it was drawn from. vLLM reports the
model's own distribution unless it was started with `--logprobs-mode processed_logprobs`; SGLang applies the
temperature, and no truncation. Two requests that can only give the likeliest token tell which it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from hermes.core import JSON, JSONObject

_ONLY_LIKELIEST = 1e-6
"""A top_p that leaves one token. Unlike top_k 1 it does not switch SGLang to greedy decoding."""
_SAME = 1e-4
"""Nats; two requests of one server differ by less."""
PROBE_TEMPERATURES = (1.0, 2.0)
PROBE_PROMPT = (3, 5, 7, 11, 13)


@dataclass(frozen=True, slots=True)
class LogprobScale:
    """What the logprobs of a server take into account."""

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
    """Of a request that can only give the likeliest token."""
    return {"temperature": temperature, "top_p": _ONLY_LIKELIEST}


def _number(value: JSON, default: float) -> float:
    """What is no number, the server refuses."""
    return float(value) if isinstance(value, int | float) else default
