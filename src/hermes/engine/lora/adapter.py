"""The training state of one LoRA: parameters, gradients, Adam moments and step count, all fp32.

Everything lies in flat buffers, so that an optimizer step, a norm or a snapshot is one operation on the
device whatever the number of layers. Matrices that are applied together lie together.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hermes.engine.lora.weights import LoraGroup, LoraPart, LoraWeights
from hermes.engine.spec import HEAD, ModelSpec, Part, Site
from hermes.engine.types import AdamParams, EngineUserError, LoraConfig

MAX_RANK = 512


@dataclass(frozen=True, slots=True)
class ParameterSlice:
    """One matrix in the flat buffer."""

    site: Site
    which: str
    """"a" [rank, in] or "b" [out, rank]"""
    shape: tuple[int, int]
    start: int

    @property
    def size(self) -> int:
        return self.shape[0] * self.shape[1]


class Adapter:
    """Owned by one thread; `freeze` is how others get at the weights."""

    def __init__(self, spec: ModelSpec, config: LoraConfig, device: torch.device) -> None:
        check_config(spec, config)
        self.spec = spec
        self.config = config
        self.seed = secrets.randbits(32) if config.seed is None else config.seed
        self.slots = plan_slots(spec, config)
        first = draw(self.slots, self.seed).to(device)
        self.parameters = first.requires_grad_()
        self.gradient = torch.zeros_like(first, requires_grad=False)
        self.mean = torch.zeros_like(self.gradient)
        """Adam's first moment."""
        self.square = torch.zeros_like(self.gradient)
        """Adam's second moment."""
        self.steps = 0

    def weights(self, dtype: torch.dtype) -> LoraWeights:
        """The live parameters in the dtype of the forward pass; gradients flow back to `parameters`."""
        return _assemble(self.spec, self.config, self.slots, self.parameters.to(dtype))

    def freeze(self) -> LoraWeights:
        """The weights as they are now, for good."""
        return _assemble(self.spec, self.config, self.slots, self.parameters.detach().clone())

    def state(self) -> dict[str, Tensor]:
        """What, besides the weights, an exact resumption needs."""
        steps = torch.tensor([self.steps], dtype=torch.int64)
        return {"mean": self.mean.clone(), "square": self.square.clone(), "steps": steps}

    def load_state(self, weights: LoraWeights, state: Mapping[str, Tensor] | None) -> None:
        """Takes over weights, and the optimizer's state or a fresh one; pending gradients are dropped.

        Weights of another scale are brought to this adapter's; linears they leave alone stay without effect.
        """
        flat = _flatten(self.spec, self.config, self.slots, weights)
        fresh = {"mean": torch.zeros_like(flat), "square": torch.zeros_like(flat), "steps": torch.zeros(1)}
        state = state or fresh
        if any(state[name].shape != fresh[name].shape for name in fresh):
            raise EngineUserError("The optimizer state belongs to an adapter of another shape.")
        with torch.no_grad():
            self.parameters.copy_(flat)
            self.mean.copy_(state["mean"])
            self.square.copy_(state["square"])
            self.gradient.zero_()
        self.steps = int(state["steps"])

    def accumulate_head(self, gradient: Tensor, a: Tensor, b: Tensor) -> None:
        """Adds the output projection's gradients to a flat gradient."""
        for slot, part in zip(self.slots[-2:], (a, b), strict=True):
            gradient[slot.start : slot.start + slot.size].add_(part.flatten())


def optim_step(adapter: Adapter, params: AdamParams) -> dict[str, float]:
    """One AdamW step on the accumulated gradients, which are cleared; returns the unclipped norm and so on.

    A gradient that is not finite changes nothing and is cleared: the weights stay usable.
    """
    norm = float(adapter.gradient.norm())
    if not math.isfinite(norm):
        adapter.gradient.zero_()
        raise EngineUserError(
            "The accumulated gradient is not finite; the step was left out and the gradient cleared.",
            "Look for probability ratios that overflow: very old logprobs, or a learning rate far too high.",
        )
    clip = params.grad_clip_norm
    scale = min(1.0, clip / (norm + 1e-6)) if clip > 0 else 1.0
    adapter.steps += 1
    with torch.no_grad():
        gradient = adapter.gradient.mul_(scale)
        adapter.parameters.mul_(1.0 - params.learning_rate * params.weight_decay)
        adapter.mean.lerp_(gradient, 1.0 - params.beta1)
        adapter.square.mul_(params.beta2).addcmul_(gradient, gradient, value=1.0 - params.beta2)
        spread = adapter.square.sqrt().div_(math.sqrt(1.0 - params.beta2**adapter.steps)).add_(params.eps)
        size = params.learning_rate / (1.0 - params.beta1**adapter.steps)
        adapter.parameters.addcdiv_(adapter.mean, spread, value=-size)
        gradient.zero_()
    # not "step": loops merge these into their own metrics, where that word is taken
    return {"grad_norm": norm, "clip_scale": scale, "optimizer_step": float(adapter.steps)}


def check_config(spec: ModelSpec, config: LoraConfig) -> None:
    most = min(MAX_RANK, spec.hidden)
    if not 1 <= config.rank <= most:
        raise EngineUserError(
            f"The LoRA rank must lie between 1 and {most} for this model, not {config.rank}.",
            "Ranks of 8 to 64 suit most runs.",
        )
    if not (config.train_attn or config.train_mlp or config.train_unembed):
        raise EngineUserError(
            "The adapter would train nothing.", "Set train_attn, train_mlp or train_unembed."
        )
    if config.seed is not None and not -(2**63) <= config.seed < 2**63:
        raise EngineUserError(f"The adapter's seed must fit 64 bits, and {config.seed} does not.")
    if not (math.isfinite(config.alpha) and config.alpha > 0):
        raise EngineUserError(f"The LoRA alpha must be a positive number, not {config.alpha}.")


def plan_slots(spec: ModelSpec, config: LoraConfig) -> tuple[ParameterSlice, ...]:
    """Per group: the A matrices of its members one after the other, then their B matrices."""
    wanted: dict[Part, bool] = {
        "attn": config.train_attn,
        "mlp": config.train_mlp,
        "unembed": config.train_unembed,
    }
    slots: list[ParameterSlice] = []
    start = 0
    for members in spec.groups.values():
        trained = [site for site in members if wanted[spec.linears[site].part]]
        for which in ("a", "b"):
            for site in trained:
                linear = spec.linears[site]
                shape = (config.rank, linear.inputs) if which == "a" else (linear.outputs, config.rank)
                slots.append(ParameterSlice(site, which, shape, start))
                start += slots[-1].size
    return tuple(slots)


def draw(slots: Sequence[ParameterSlice], seed: int) -> Tensor:
    """First parameters: A uniform within 1 / sqrt(in), as PEFT draws it; B zero. Drawn on the CPU, so that a
    seed means the same weights on every device."""
    generator = torch.Generator().manual_seed(seed)
    flat = torch.zeros(sum(slot.size for slot in slots))
    for slot in slots:
        if slot.which == "a":
            bound = slot.shape[1] ** -0.5
            flat[slot.start : slot.start + slot.size].uniform_(-bound, bound, generator=generator)
    return flat


def _assemble(
    spec: ModelSpec, config: LoraConfig, slots: Sequence[ParameterSlice], flat: Tensor
) -> LoraWeights:
    # One split for all matrices: its backward pass is one concatenation, not one addition a matrix.
    pieces = iter(torch.split(flat, _runs(slots)))
    scale = config.alpha / config.rank
    trained = {slot.site for slot in slots}
    groups: dict[Site, LoraGroup] = {}
    for group, members in spec.groups.items():
        if not trained.issuperset(members):
            continue
        stacked = next(pieces).view(-1, spec.linears[members[0]].inputs)
        parts = tuple(LoraPart(next(pieces).view(-1, config.rank), scale) for _ in members)
        groups[group] = LoraGroup(stacked, parts)
    return LoraWeights(groups)


def _runs(slots: Sequence[ParameterSlice]) -> list[int]:
    """Sizes of what is applied as one: a group's A matrices together, each B by itself."""
    sizes: list[int] = []
    before = "b"
    for slot in slots:
        if slot.which == "a" == before:
            sizes[-1] += slot.size
        else:
            sizes.append(slot.size)
        before = slot.which
    return sizes


def _flatten(
    spec: ModelSpec, config: LoraConfig, slots: Sequence[ParameterSlice], weights: LoraWeights
) -> Tensor:
    given: dict[tuple[Site, str], Tensor] = {}
    for group, loaded in weights.groups.items():
        for site, (rows, part) in zip(spec.groups[group], loaded.spans(), strict=True):
            if part is not None:
                given[site, "a"] = loaded.a[rows].float()
                given[site, "b"] = part.b.float() * (part.scale * config.rank / config.alpha)
    known = {(slot.site, slot.which): slot for slot in slots}
    for key, matrix in given.items():
        slot = known.get(key)
        if slot is None or tuple(matrix.shape) != slot.shape:
            where = "lm_head" if key[0] == HEAD else f"layer {key[0][0]}, {key[0][1]}"
            raise EngineUserError(
                f"The weights do not fit this adapter at {where}: {tuple(matrix.shape)} against "
                f"{slot.shape if slot else 'nothing'}.",
                "Make the adapter with the rank and the train_* flags of the weights.",
            )
    blank = draw(slots, seed=0)
    for key, slot in known.items():
        if key in given:
            blank[slot.start : slot.start + slot.size] = given[key].flatten().cpu()
    return blank
