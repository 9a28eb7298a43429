"""Estimates the time and memory of a run from measurements.

The update is measured with an engine like the run's own, on a group that it sampled. At a service it would
cost money, so there only the sampling is measured. Memory is estimated for a run on a CPU: an engine on a GPU
plans its own, and a service uses none of this machine.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from hermes.core.sequence import MASKED
from hermes.rl.service import LOCAL_KEY
from hermes.training.schedule import parameters_of

if TYPE_CHECKING:
    from hermes.core import JSONObject
    from hermes.rl.config.resolve import Resolved

_PROCESSES_GB = 1.3
"""Memory of engine, trainer, environment and API without a model."""
_TRAINED_AT_ONCE = 1024
"""Tokens of one training micro-batch on a CPU."""
_KNOWN_PARAMETERS, _KNOWN_ACTIVATIONS = 135e6, 322e3
"""Values per token that one model keeps for the backward pass. They grow as the square root of the size."""


def update_seconds(url: str, model: str, resolved: Resolved, groups: Sequence[JSONObject]) -> float | None:
    """The time of an update per sequence, at that engine; None: every group is too long for the trainer.

    The second of two equal updates is measured: the first one also initialises the engine.
    """
    from hermes.training.data.correction import LossSpec
    from hermes.training.data.datums import sft_datum
    from hermes.training.service.client import AdapterClient, LoraSpec, ServiceConnection
    from hermes.training.service.token_meter import TokenMeter

    longest = resolved.values["tinker.max_token_trainer_length"]
    fitting = [group for group in groups if all(len(tokens) <= longest for tokens in group["tokens"])]
    if not fitting:
        return None
    pairs = zip(fitting[0]["tokens"], fitting[0]["masks"], strict=True)
    data = [sft_datum(tokens, [float(token != MASKED) for token in mask]) for tokens, mask in pairs]
    lora = LoraSpec(model, resolved.values["tinker.lora_rank"])
    with (
        TemporaryDirectory() as meter_folder,
        closing(TokenMeter(Path(meter_folder))) as meter,
        AdapterClient(ServiceConnection(url, LOCAL_KEY), lora, meter) as client,
    ):
        for _ in range(2):
            begun_s = time.monotonic()
            client.forward_backward(data, LossSpec("cross_entropy", {}))
            client.optim_step(1e-6, 0.9, 0.95, 1.0)
            took_s = time.monotonic() - begun_s
    return took_s / len(data)


def estimate(resolved: Resolved, sampling_s: float, update_s: float | None, on_cpu: bool) -> JSONObject:
    """`sampling_s` and `update_s` are those of one sequence."""
    values = resolved.values
    step_s = (sampling_s + (update_s or 0.0)) * values["env.batch_size"]
    return {
        "seconds_per_step": round(step_s, 1),
        "hours": round(step_s * values["env.total_steps"] / 3600, 2),
        "update_share": None if update_s is None else round(update_s / (sampling_s + update_s), 2),
        "memory_gb": _memory_gb(resolved.model) if on_cpu else None,
    }


def _memory_gb(model: str) -> float:
    parameters: float = parameters_of(model) or 0.0
    activations = _KNOWN_ACTIVATIONS * (parameters / _KNOWN_PARAMETERS) ** 0.5
    needed: float = _PROCESSES_GB + 4 * (parameters + _TRAINED_AT_ONCE * activations) / 1e9
    return round(needed, 2)
