"""Any causal language model of transformers as a backbone: its own modules, our attention and adapters.

Attention comes in through transformers' registry of attention functions, masks are turned off in its registry
of mask functions, and adapters act through forward hooks on the linear layers. Whether that is the whole
truth about a model (no state outside attention, no logits changed after the output projection) is not
taken on trust: a few tokens are run packed and apart, and through the model's own head, beforehand.
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
from hermes.engine.lora.weights import LoraView, LoraWeights, with_delta
from hermes.engine.spec import HEAD, Linear, Part, Site, read_spec
from hermes.engine.types import EngineUserError

_numbers = itertools.count()

_SHORT = {
    "q_proj": "q",
    "k_proj": "k",
    "v_proj": "v",
    "o_proj": "o",
    "gate_proj": "gate",
    "up_proj": "up",
    "down_proj": "down",
}

_TOLERANCE = 0.05
"""Of the largest logit: rounding in bf16 passes, a head that scales or caps its logits does not."""


class TransformersBackbone:
    """One at a time: `hidden` remembers its attention until the backward pass of what it returned is done."""

    def __init__(self, model: Any, name: str, device: torch.device, *, trusted: bool = False) -> None:
        self._model = model.to(device).eval().requires_grad_(False)
        self._inner = model.get_decoder()
        config = model.config.get_text_config()
        self._attend: Attend | None = None
        self._lora: LoraView | None = None
        self._calls = 0
        linears = _linears(self._inner, _prefix(model, self._inner), model.get_output_embeddings())
        try:
            alone = {site: (site,) for site in linears}
            self.spec = read_spec(config, name, linears, alone, model.generation_config)
        except AttributeError as error:
            raise _unsupported(name, f"it is no attention model ({error})") from error
        if getattr(config, "attn_logit_softcapping", None):
            raise _unsupported(name, "its attention scores are soft-capped")
        self._hook(linears)
        model.set_attn_implementation(_register(self))
        if not trusted:
            self._check()

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
        self._attend, self._lora, self._calls = attend, lora, 0
        embedded = self._inner.get_input_embeddings()(tokens[None])
        if checkpoint:
            # transformers skips checkpointing outside training mode, and whatever needs no gradient; there is
            # no dropout to switch on, since the attention function is ours.
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
        changed = {self.spec.linears[site].path for site in weights.groups if site in self.spec.linears}
        shared = {
            id(one): one
            for path, module in self._model.named_modules()
            for one in (*module.parameters(recurse=False), *module.buffers(recurse=False))
            if path not in changed
        }
        hooks = [module._forward_hooks for module in self._model.modules()]
        twin = copy.deepcopy(self._model, {**shared, **{id(one): type(one)() for one in hooks}})
        for site, group in weights.groups.items():
            linear = self.spec.linears[site]
            module: Any = twin.get_submodule(linear.path)
            merged = with_delta(module.weight.detach(), group, (linear.outputs,))
            module.weight = nn.Parameter(merged, requires_grad=False)
        return TransformersBackbone(twin, self.spec.name, self.device, trusted=True)

    def attention(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, scaling: float | None
    ) -> tuple[Tensor, None]:
        """What the model's attention layers call: [1, heads, T, D] in, [1, T, heads, D] out."""
        assert self._attend is not None
        self._calls += 1
        q, k, v = (one[0].transpose(0, 1) for one in (query, key, value))
        if scaling is not None and scaling != self.spec.head_dim**-0.5:
            q = q * (scaling * self.spec.head_dim**0.5)
        return self._attend(int(module.layer_idx), q, k, v)[None], None

    def _hook(self, linears: dict[Site, Linear]) -> None:
        me = weakref.ref(self)

        def hook_for(site: Site) -> Any:
            def add(module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor | None:
                owner = me()
                if owner is None or owner._lora is None:
                    return None
                flat = out.reshape(-1, out.shape[-1])
                return owner._lora.apply(site, args[0].reshape(-1, args[0].shape[-1]), (flat,))[0].view_as(
                    out
                )

            return add

        for site, linear in linears.items():
            if site != HEAD:
                self._model.get_submodule(linear.path).register_forward_hook(hook_for(site))

    @torch.no_grad()
    def _check(self) -> None:
        from hermes.engine.attention.packed import packed_attend
        from hermes.engine.attention.packing import pack_plainly

        texts = [np.array([1, 2, 3]), np.array([4, 3, 2, 1, 0])]
        apart, packed = ([pack_plainly([text]) for text in texts], pack_plainly(texts))
        states = []
        for batch in (*apart, packed):
            tokens, positions = (
                torch.as_tensor(one, device=self.device) for one in (batch.tokens, batch.positions)
            )
            states.append(self.hidden(tokens, positions, packed_attend(batch, self.spec, self.device), None))
            if self._calls != self.spec.layers:
                raise _unsupported(
                    self.spec.name, "not all of its layers attend through transformers' interface"
                )
        own = self._model(
            input_ids=torch.as_tensor(packed.tokens, device=self.device)[None],
            position_ids=torch.as_tensor(packed.positions, device=self.device)[None],
            use_cache=False,
        ).logits[0]
        ours = states[2] @ self.head_weight.t()
        if not _close(torch.cat(states[:2]), states[2]):
            raise _unsupported(self.spec.name, "its layers mix tokens outside attention")
        if not _close(own, ours):
            raise _unsupported(self.spec.name, "it changes logits after the output projection")


def _register(backbone: TransformersBackbone) -> str:
    """A name of this backbone's own in transformers' registries; the backbone is not kept alive by it."""
    from transformers import AttentionInterface, AttentionMaskInterface

    name = f"hermes_{next(_numbers)}"
    me = weakref.ref(backbone)

    def attention(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Any,
        scaling: float | None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        owner = me()
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
        words = path.split(".")
        if not isinstance(module, nn.Linear) or words[0] != "layers":
            continue
        target = _SHORT.get(words[-1], ".".join(words[2:]))
        part: Part = "attn" if "attn" in path or "attention" in path else "mlp"
        linears[int(words[1]), target] = Linear(
            f"{prefix}.{path}", module.in_features, module.out_features, part
        )
    linears[HEAD] = Linear("lm_head", head.in_features, head.out_features, "unembed")
    return linears


def _close(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).abs().max() <= _TOLERANCE * b.abs().max())


def _unsupported(name: str, why: str) -> EngineUserError:
    return EngineUserError(
        f"'{name}' cannot be used as a base model: {why}.",
        "Llama, SmolLM, Mistral, Qwen2, Qwen3 and Gemma models are known to work.",
    )
