"""The training state of one LoRA: parameters, gradients, Adam moments and step count, all fp32.

All of them are flat buffers, so that an optimizer step, a norm or a snapshot is one operation on the device,
whatever the number of layers. Matrices that are applied together are adjacent.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hermes.engine.lora.adapter_table import AdapterTable
from hermes.engine.lora.weights import LoraGroup, LoraPart, LoraWeights
from hermes.engine.spec import HEAD, ModelSpec, Part, Site
from hermes.engine.types import AdamParams, EngineUserError, LoraConfig

MAX_RANK = 512


@dataclass(frozen=True, slots=True)
class ParameterSlice:
    """One matrix in the flat buffer."""

    site: Site
    matrix: str
    """"a" [rank, in] or "b" [out, rank]"""
    shape: tuple[int, int]
    start: int

    @property
    def size(self) -> int:
        return self.shape[0] * self.shape[1]


class Adapter:
    """Used by one thread; other threads get copies of the weights by `freeze`."""

    def __init__(self, spec: ModelSpec, config: LoraConfig, device: torch.device) -> None:
        check_config(spec, config)
        self.spec = spec
        self.config = config
        self.seed = secrets.randbits(32) if config.seed is None else config.seed
        self.slices = plan_slices(spec, config)
        self.parameters = initial_parameters(self.slices, self.seed).to(device).requires_grad_()
        self.gradient = torch.zeros_like(self.parameters, requires_grad=False)
        self.mean = torch.zeros_like(self.gradient)
        """Adam's first moment."""
        self.square = torch.zeros_like(self.gradient)
        """Adam's second moment."""
        self.steps = 0
        self._table: tuple[int, torch.dtype, AdapterTable] | None = None

    @property
    def version(self) -> int:
        """Increases with every write to the parameters: torch counts them, so no writer can forget it."""
        return self.parameters._version

    def weights(self, dtype: torch.dtype) -> LoraWeights:
        """The live parameters in the dtype of the forward pass; gradients flow back to `parameters`."""
        return assemble(self.spec, self.config, self.slices, self.parameters.to(dtype))

    def table(self, dtype: torch.dtype) -> AdapterTable:
        """The live parameters as the kernels of a GPU read them; made again after a write to them."""
        if self._table is None or self._table[:2] != (self.version, dtype):
            table = AdapterTable(self.spec.groups, self.gradient.device)
            flat = self.parameters.detach().to(dtype)
            table.write(0, assemble(self.spec, self.config, self.slices, flat).aligned())
            self._table = (self.version, dtype, table)
        return self._table[2]

    def live_weights(self) -> LoraWeights:
        """The parameters in fp32, detached; valid until the next step."""
        return assemble(self.spec, self.config, self.slices, self.parameters.detach())

    def freeze(self) -> LoraWeights:
        """A copy of the current weights, which later steps do not change."""
        return assemble(self.spec, self.config, self.slices, self.parameters.detach().clone())

    def state(self) -> dict[str, Tensor]:
        """The optimizer state, which an exact resumption needs besides the weights."""
        steps = torch.tensor([self.steps], dtype=torch.int64)
        return {"mean": self.mean.clone(), "square": self.square.clone(), "steps": steps}

    def load_state(self, weights: LoraWeights, state: Mapping[str, Tensor] | None) -> None:
        """Loads weights, and an optimizer state or a new one; accumulated gradients are zeroed.

        Weights with another scale are converted to this adapter's. Linears that they do not contain get B =
        0.
        """
        flat = _flatten(self.spec, self.config, self.slices, weights)
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
        """Adds the LM head's gradients to a flat gradient."""
        for parameter, part in zip(self.slices[-2:], (a, b), strict=True):
            gradient[parameter.start : parameter.start + parameter.size].add_(part.flatten())


def optim_step(adapter: Adapter, params: AdamParams) -> dict[str, float]:
    """One AdamW step on the accumulated gradients, which are zeroed; returns its metrics.

    If the gradient is not finite, it is zeroed and the weights are not changed.
    """
    norm = float(adapter.gradient.norm())
    if not math.isfinite(norm):
        adapter.gradient.zero_()
        raise EngineUserError(
            "The accumulated gradient is not finite; the step was skipped and the gradient zeroed.",
            "Check for probability ratios that overflow: very old logprobs, or a learning rate far too high.",
        )
    clip = params.grad_clip_norm
    scale = min(1.0, clip / (norm + 1e-6)) if clip > 0 else 1.0
    adapter.steps += 1
    with torch.no_grad():
        gradient = adapter.gradient.mul_(scale)
        adapter.parameters.mul_(1.0 - params.learning_rate * params.weight_decay)
        adapter.mean.lerp_(gradient, 1.0 - params.beta1)
        adapter.square.mul_(params.beta2).addcmul_(gradient, gradient, value=1.0 - params.beta2)
        deviation = adapter.square.sqrt().div_(math.sqrt(1.0 - params.beta2**adapter.steps)).add_(params.eps)
        size = params.learning_rate / (1.0 - params.beta1**adapter.steps)
        adapter.parameters.addcdiv_(adapter.mean, deviation, value=-size)
        gradient.zero_()
    # Not "step": training loops merge these into their own metrics, which use that name.
    return {"grad_norm": norm, "clip_scale": scale, "optimizer_step": float(adapter.steps)}


def check_config(spec: ModelSpec, config: LoraConfig) -> None:
    max_rank = min(MAX_RANK, spec.hidden)
    if not 1 <= config.rank <= max_rank:
        raise EngineUserError(
            f"The LoRA rank must be between 1 and {max_rank} for this model, not {config.rank}.",
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


def plan_slices(spec: ModelSpec, config: LoraConfig) -> tuple[ParameterSlice, ...]:
    """Per group: the A matrices of its members, then their B matrices."""
    trains: dict[Part, bool] = {
        "attn": config.train_attn,
        "mlp": config.train_mlp,
        "unembed": config.train_unembed,
    }
    slices: list[ParameterSlice] = []
    start = 0
    for members in spec.groups.values():
        trained = [site for site in members if trains[spec.linears[site].part]]
        for matrix in ("a", "b"):
            for site in trained:
                linear = spec.linears[site]
                shape = (config.rank, linear.inputs) if matrix == "a" else (linear.outputs, config.rank)
                slices.append(ParameterSlice(site, matrix, shape, start))
                start += slices[-1].size
    return tuple(slices)


def initial_parameters(slices: Sequence[ParameterSlice], seed: int) -> Tensor:
    """A uniform within 1 / sqrt(in), as in PEFT; B zero. Sampled on the CPU, so that a seed gives the same
    weights on every device."""
    generator = torch.Generator().manual_seed(seed)
    flat = torch.zeros(sum(parameter.size for parameter in slices))
    for parameter in slices:
        if parameter.matrix == "a":
            bound = parameter.shape[1] ** -0.5
            flat[parameter.start : parameter.start + parameter.size].uniform_(
                -bound, bound, generator=generator
            )
    return flat


def assemble(
    spec: ModelSpec, config: LoraConfig, slices: Sequence[ParameterSlice], flat: Tensor
) -> LoraWeights:
    """The weights as views of the flat parameters; gradients flow back to them."""
    # One split for all matrices: its backward pass is one concatenation, not one addition per matrix.
    matrices = iter(torch.split(flat, _stacked_sizes(slices)))
    scale = config.alpha / config.rank
    trained = {parameter.site for parameter in slices}
    groups: dict[Site, LoraGroup] = {}
    for group, members in spec.groups.items():
        if not trained.issuperset(members):
            continue
        stacked = next(matrices).view(-1, spec.linears[members[0]].inputs)
        parts = tuple(LoraPart(next(matrices).view(-1, config.rank), scale) for _ in members)
        groups[group] = LoraGroup(stacked, parts)
    return LoraWeights(groups)


def _stacked_sizes(slices: Sequence[ParameterSlice]) -> list[int]:
    """Sizes of the matrices that are applied: a group's stacked A matrices, and each B."""
    sizes: list[int] = []
    previous = "b"
    for parameter in slices:
        if parameter.matrix == "a" == previous:
            sizes[-1] += parameter.size
        else:
            sizes.append(parameter.size)
        previous = parameter.matrix
    return sizes


def _flatten(
    spec: ModelSpec, config: LoraConfig, slices: Sequence[ParameterSlice], weights: LoraWeights
) -> Tensor:
    loaded: dict[tuple[Site, str], Tensor] = {}
    for name, group in weights.groups.items():
        for site, (rows, part) in zip(spec.groups[name], group.spans(), strict=True):
            if part is not None:
                loaded[site, "a"] = group.a[rows].float()
                loaded[site, "b"] = part.b.float() * (part.scale * config.rank / config.alpha)
    by_matrix = {(parameter.site, parameter.matrix): parameter for parameter in slices}
    for key, matrix in loaded.items():
        parameter = by_matrix.get(key)
        if parameter is None or tuple(matrix.shape) != parameter.shape:
            location = "lm_head" if key[0] == HEAD else f"layer {key[0][0]}, {key[0][1]}"
            raise EngineUserError(
                f"The weights do not fit this adapter at {location}: {tuple(matrix.shape)} against "
                f"{parameter.shape if parameter else 'nothing'}.",
                "Create the adapter with the rank and the train_* flags of the weights.",
            )
    flat = initial_parameters(slices, seed=0)
    for key, parameter in by_matrix.items():
        if key in loaded:
            flat[parameter.start : parameter.start + parameter.size] = loaded[key].flatten().cpu()
    return flat
