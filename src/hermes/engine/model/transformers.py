"""Any causal language model of transformers as a backbone: its own modules, with our attention and adapters.

Attention is replaced through transformers' registry of attention functions, masks are disabled in its
registry of mask functions, and adapters are applied by forward hooks on the linear layers. This is not
correct for every model (one with state outside attention, or with logits changed after the LM head), so it is
checked when the model is loaded: a few tokens are run packed and one by one, and through the model's own
head.
"""

from __future__ import annotations

import copy
import itertools
import weakref
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hermes.engine.attention.base import Attend
from hermes.engine.lora.weights import LoraView, LoraWeights, merge_delta
from hermes.engine.spec import HEAD, Linear, Part, Site, read_spec
from hermes.engine.types import EngineUserError

_instance_numbers = itertools.count()

_SHORT_NAMES = {
    "q_proj": "q",
    "k_proj": "k",
    "v_proj": "v",
    "o_proj": "o",
    "gate_proj": "gate",
    "up_proj": "up",
    "down_proj": "down",
}

_TOLERANCE = 0.05
"""Relative to the largest logit: rounding in bf16 passes, a head that scales or caps its logits does not."""


class TransformersBackbone:
    """Runs one pass at a time: the attention of `hidden` stays set until the backward pass of its result."""

    def __init__(self, model: Any, name: str, device: torch.device, *, trusted: bool = False) -> None:
        self._model = model.to(device).eval().requires_grad_(False)
        self._inner = model.get_decoder()
        config = model.config.get_text_config()
        self._attend: Attend | None = None
        self._lora: LoraView | None = None
        self._attention_calls = 0
        linears = _linears(self._inner, _prefix(model, self._inner), model.get_output_embeddings())
        try:
            groups = {site: (site,) for site in linears}
            generation_eos = model.generation_config.eos_token_id if model.generation_config else None
            self.spec = read_spec(config, name, linears, groups, generation_eos)
        except AttributeError as error:
            raise _unsupported_error(name, f"it is not an attention model ({error})") from error
        if getattr(config, "attn_logit_softcapping", None):
            raise _unsupported_error(name, "its attention scores are soft-capped")
        self._register_hooks(linears)
        model.set_attn_implementation(_register(self))
        if not trusted:
            self._check_exactness()

    @property
    def device(self) -> torch.device:
        return self.head_weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.head_weight.dtype

    @property
    def head_weight(self) -> Tensor:
        weight: Tensor = self._model.get_output_embeddings().weight
        return weight

    def hidden(
        self,
        tokens: Tensor,
        positions: Tensor,
        attend: Attend,
        lora: LoraView | None,
        *,
        checkpoint: bool = False,
    ) -> Tensor:
        self._attend, self._lora, self._attention_calls = attend, lora, 0
        embedded = self._inner.get_input_embeddings()(tokens[None])
        if checkpoint:
            # transformers checkpoints only in training mode, and only what needs a gradient. Training mode
            # enables no dropout, since the attention function is ours.
            embedded = embedded.requires_grad_()
            self._inner.gradient_checkpointing_enable({"use_reentrant": False})
            self._inner.train()
        try:
            out = self._inner(inputs_embeds=embedded, position_ids=positions[None], use_cache=False)
        finally:
            if checkpoint:
                self._inner.eval()
        final: Tensor = out.last_hidden_state
        return final[0]

    def merged(self, weights: LoraWeights) -> TransformersBackbone:
        adapted = {self.spec.linears[site].path for site in weights.groups if site in self.spec.linears}
        shared = {
            id(tensor): tensor
            for path, module in self._model.named_modules()
            for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False))
            if path not in adapted
        }
        no_hooks = {
            id(module._forward_hooks): type(module._forward_hooks)() for module in self._model.modules()
        }
        merged_model = copy.deepcopy(self._model, {**shared, **no_hooks})
        for site, group in weights.groups.items():
            linear = self.spec.linears[site]
            module: Any = merged_model.get_submodule(linear.path)
            merged = merge_delta(module.weight.detach(), group, (linear.outputs,))
            module.weight = nn.Parameter(merged, requires_grad=False)
        return TransformersBackbone(merged_model, self.spec.name, self.device, trusted=True)

    def attention(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, scaling: float | None
    ) -> tuple[Tensor, None]:
        """Called by the model's attention layers, with [1, heads, T, D]; returns [1, T, heads, D]."""
        assert self._attend is not None
        self._attention_calls += 1
        q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
        if scaling is not None and scaling != self.spec.head_dim**-0.5:
            q = q * (scaling * self.spec.head_dim**0.5)
        return self._attend(int(module.layer_idx), q, k, v)[None], None

    def _register_hooks(self, linears: dict[Site, Linear]) -> None:
        reference = weakref.ref(self)

        def hook_for(site: Site) -> Any:
            def add(module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor | None:
                owner = reference()
                if owner is None or owner._lora is None:
                    return None
                x, flat = args[0].reshape(-1, args[0].shape[-1]), out.reshape(-1, out.shape[-1])
                return owner._lora.apply(site, x, (flat,))[0].view_as(out)

            return add

        for site, linear in linears.items():
            if site != HEAD:
                self._model.get_submodule(linear.path).register_forward_hook(hook_for(site))

    @torch.no_grad()
    def _check_exactness(self) -> None:
        """EngineUserError: packed tokens, or our LM head, give other numbers than the model itself."""
        from hermes.engine.attention.packed import packed_attend
        from hermes.engine.attention.packing import pack_unshared

        texts = [np.array([1, 2, 3]), np.array([4, 3, 2, 1, 0])]
        single, packed = ([pack_unshared([text]) for text in texts], pack_unshared(texts))
        states = []
        for batch in (*single, packed):
            tokens = torch.as_tensor(batch.tokens, device=self.device)
            positions = torch.as_tensor(batch.positions, device=self.device)
            states.append(self.hidden(tokens, positions, packed_attend(batch, self.spec, self.device), None))
            if self._attention_calls != self.spec.layers:
                raise _unsupported_error(
                    self.spec.name, "not all of its layers attend through transformers' interface"
                )
        model_logits = self._model(
            input_ids=torch.as_tensor(packed.tokens, device=self.device)[None],
            position_ids=torch.as_tensor(packed.positions, device=self.device)[None],
            use_cache=False,
        ).logits[0]
        logits = states[2] @ self.head_weight.t()
        if not _is_close(torch.cat(states[:2]), states[2]):
            raise _unsupported_error(self.spec.name, "its layers mix tokens outside attention")
        if not _is_close(model_logits, logits):
            raise _unsupported_error(self.spec.name, "it changes logits after the output projection")


def _register(backbone: TransformersBackbone) -> str:
    """Registers the backbone's attention with transformers under a unique name, by a weak reference."""
    from transformers import AttentionInterface, AttentionMaskInterface

    name = f"hermes_{next(_instance_numbers)}"
    reference = weakref.ref(backbone)

    def attention(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Any,
        scaling: float | None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        owner = reference()
        assert owner is not None
        return owner.attention(module, query, key, value, scaling)

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, _no_mask)
    return name


def _no_mask(*_: Any, **__: Any) -> None:
    return None


def _prefix(model: nn.Module, inner: nn.Module) -> str:
    names: dict[int, str] = {id(module): name for name, module in model.named_modules()}
    return names[id(inner)]


def _linears(inner: nn.Module, prefix: str, head: Any) -> dict[Site, Linear]:
    linears: dict[Site, Linear] = {}
    for path, module in inner.named_modules():
        names = path.split(".")
        if not isinstance(module, nn.Linear) or names[0] != "layers":
            continue
        target = _SHORT_NAMES.get(names[-1], ".".join(names[2:]))
        part: Part = "attn" if "attn" in path or "attention" in path else "mlp"
        linears[int(names[1]), target] = Linear(
            f"{prefix}.{path}", module.in_features, module.out_features, part
        )
    linears[HEAD] = Linear("lm_head", head.in_features, head.out_features, "unembed")
    return linears


def _is_close(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).abs().max() <= _TOLERANCE * b.abs().max())


def _unsupported_error(name: str, reason: str) -> EngineUserError:
    return EngineUserError(
        f"'{name}' cannot be used as a base model: {reason}.",
        "Llama, SmolLM, Mistral, Qwen2, Qwen3 and Gemma models are supported.",
    )
