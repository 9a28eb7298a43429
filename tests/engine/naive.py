"""The obvious way to train: one sequence after the other, through transformers and PEFT."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hermes.engine.lora.adapter import Adapter
from hermes.engine.spec import Site
from hermes.engine.types import Datum

PerToken = Callable[[Tensor, Datum], Tensor]


def peft_twin(model: Any, adapter: Adapter) -> Any:
    """The model under PEFT, with the adapter's weights."""
    import peft

    paths = [adapter.spec.linears[slot.site].path for slot in adapter.slices if slot.matrix == "a"]
    config = peft.LoraConfig(
        r=adapter.config.rank, lora_alpha=int(adapter.config.alpha), target_modules=paths, lora_dropout=0.0
    )
    twin = peft.get_peft_model(model, config).float()
    for slot in adapter.slices:
        values = adapter.parameters.detach()[slot.start : slot.start + slot.size].view(slot.shape)
        peft_matrix(twin, adapter, slot.site, slot.matrix).data.copy_(values)
    return twin


def peft_matrix(twin: Any, adapter: Adapter, site: Site, which: str) -> Any:
    module = twin.base_model.model.get_submodule(adapter.spec.linears[site].path)
    return getattr(module, f"lora_{which.upper()}").default.weight


def target_logprobs(twin: Any, datum: Datum) -> Tensor:
    """[N] or [N, K], with a gradient."""
    logits: Tensor = twin(input_ids=torch.as_tensor(datum.tokens)[None]).logits[0].float()
    targets = torch.as_tensor(datum.inputs["target_tokens"])
    columns = targets[:, None] if targets.dim() == 1 else targets
    return logits.log_softmax(-1).gather(1, columns).view(targets.shape)


def naive_step(twin: Any, data: Sequence[Datum], per_token: PerToken) -> tuple[float, list[Tensor]]:
    """Adds to the gradients; returns the loss and each datum's logprobs."""
    total, logprobs = 0.0, []
    for datum in data:
        found = target_logprobs(twin, datum)
        loss = per_token(found, datum).sum()
        if loss.requires_grad:
            torch.autograd.backward(loss)
        total += float(loss.detach())
        logprobs.append(found.detach())
    return total, logprobs


def flat_gradient(twin: Any, adapter: Adapter) -> Tensor:
    """PEFT's gradients in the order of the adapter's buffer."""
    parts = []
    for slot in adapter.slices:
        gradient = peft_matrix(twin, adapter, slot.site, slot.matrix).grad
        parts.append(torch.zeros(slot.size) if gradient is None else gradient.flatten())
    return torch.cat(parts)


def cross_entropy(p: Tensor, datum: Datum) -> Tensor:
    return -p * torch.as_tensor(datum.inputs["weights"])


def importance_sampling(p: Tensor, datum: Datum) -> Tensor:
    q, advantages = (torch.as_tensor(datum.inputs[name]) for name in ("logprobs", "advantages"))
    return -(p - q).exp() * advantages


def shake(adapter: Adapter, seed: int = 0, size: float = 0.1) -> None:
    """Makes B non-zero, so that every gradient matters."""
    noise = torch.randn(adapter.parameters.shape, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        adapter.parameters.add_(size * noise)


def expect_same_gradient(adapter: Adapter, twin: Any, share: float = 1e-5) -> None:
    """To a share of the largest entry."""
    theirs = flat_gradient(twin, adapter)
    torch.testing.assert_close(adapter.gradient, theirs, atol=share * float(theirs.abs().max()), rtol=1e-5)
